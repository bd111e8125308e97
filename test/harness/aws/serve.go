package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strings"
)

// service is an API: how it is spoken, and what it can do.
type service struct {
	name string // as it is called in faults
	protocol
	actions map[string]action
	global  bool // is the same in all regions
}

// action answers a call. decode fills the SDK's input.
type action func(ctx context.Context, s *Server, decode func(in any) error) (out any, err error)

// call makes an action of a handler that takes and returns the SDK's types. The region stands still for it.
func call[In, Out any](handler func(*Server, *In) (*Out, error)) action {
	return func(_ context.Context, s *Server, decode func(any) error) (any, error) {
		var in In
		if err := decode(&in); err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return handler(s, &in)
	}
}

// services are by the name that requests are signed for, which stands in their Authorization.
var services = map[string]service{
	"ec2":     {name: "EC2", protocol: ec2Protocol, actions: ec2Actions},
	"ssm":     {name: "SSM", protocol: jsonProtocol("1.1"), actions: ssmActions},
	"pricing": {name: "Pricing", protocol: jsonProtocol("1.1"), actions: pricingActions, global: true},
	"eks":     {name: "EKS", protocol: eksProtocol, actions: eksActions},
	"iam":     {name: "IAM", protocol: queryProtocol, actions: iamActions, global: true},
	"sqs":     {name: "SQS", protocol: jsonProtocol("1.0"), actions: sqsActions},
	"sts":     {name: "STS", protocol: queryProtocol, actions: stsActions},
}

// maxBody is for a request; launch templates, the largest, have 16 KiB of user data.
const maxBody = 1 << 20

var scope = regexp.MustCompile(`Credential=([^/,]+)/[0-9]{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request`)

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.serve(w, r) }

// serve answers a request and returns what it answered, in the SDK's type.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) any {
	request, ok := signed(r)
	if !ok {
		http.Error(w, "not a signed request", http.StatusForbidden)
		return nil
	}
	api, ok := services[request.service]
	if !ok {
		http.Error(w, fmt.Sprintf("the local AWS has no service %q", request.service), http.StatusNotImplemented)
		return nil
	}
	var err error
	if request.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		http.Error(w, "reading the request: "+err.Error(), http.StatusBadRequest)
		return nil
	}
	name := api.action(request)
	out, err := s.answer(r.Context(), api, name, request)
	if page := (html{}); errors.As(err, &page) {
		reply(w, page.status, "text/html", []byte(page.text))
		return nil
	}
	if errors.Is(err, errCut) {
		panic(http.ErrAbortHandler) // closes the connection
	}
	w.Header().Set("X-Amzn-Requestid", fmt.Sprintf("00000000-0000-4000-8000-%012x", s.requests.Add(1)))
	if err != nil {
		api.fail(w, asFailure(err))
		return nil
	}
	api.write(w, name, out)
	return out
}

func (s *Server) answer(ctx context.Context, api service, name string, r request) (any, error) {
	if err := s.admit(ctx, api, name); err != nil {
		return nil, err
	}
	if err := s.authorize(r, api, name); err != nil {
		return nil, err
	}
	act, ok := api.actions[name]
	if !ok {
		return nil, failure{http.StatusBadRequest, "InvalidAction", fmt.Sprintf("the local AWS has no action %q of %s", name, api.name)}
	}
	at := s
	if !api.global {
		at = s.in(r.region)
	}
	return act(ctx, at, func(in any) error {
		if err := api.read(r, in); err != nil {
			return failure{http.StatusBadRequest, "InvalidParameterValue", err.Error()}
		}
		if dry(in) {
			return failure{http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."}
		}
		return nil
	})
}

// dry says whether a call only asks whether it would be allowed.
func dry(in any) bool {
	field := reflect.ValueOf(in).Elem().FieldByName("DryRun")
	if !field.IsValid() {
		return false
	}
	flag, ok := field.Interface().(*bool)
	return ok && flag != nil && *flag
}

// short is a name's part behind the last of a character.
func short(name, separator string) string { return name[strings.LastIndex(name, separator)+1:] }
