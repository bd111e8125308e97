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

// service is an AWS service: its protocol and its actions.
type service struct {
	name string // its name in faults
	protocol
	actions map[string]action
	global  bool // it is the same in all regions
}

// action answers a call. decode fills the SDK's input.
type action func(ctx context.Context, s *Server, decode func(in any) error) (out any, err error)

// call turns a handler of SDK types into an action. It locks the region during the call.
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

// services are keyed by the service name in the signature, which is part of the Authorization header.
var services = map[string]service{
	"ec2":           {name: "EC2", protocol: ec2Protocol, actions: ec2Actions},
	"ssm":           {name: "SSM", protocol: jsonProtocol("1.1"), actions: ssmActions},
	"pricing":       {name: "Pricing", protocol: jsonProtocol("1.1"), actions: pricingActions, global: true},
	"servicequotas": {name: "Service Quotas", protocol: jsonProtocol("1.1"), actions: quotaActions},
	"eks":           {name: "EKS", protocol: eksProtocol, actions: eksActions},
	"iam":           {name: "IAM", protocol: queryProtocol, actions: iamActions, global: true},
	"sqs":           {name: "SQS", protocol: jsonProtocol("1.0"), actions: sqsActions},
	"sts":           {name: "STS", protocol: queryProtocol, actions: stsActions},
}

// maxBody limits the size of a request. The largest requests create launch templates, with 16 KiB of user data.
const maxBody = 1 << 20

var scope = regexp.MustCompile(`Credential=([^/,]+)/[0-9]{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request`)

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.serve(w, r) }

// serve answers a request and returns the response as an SDK type.
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
	if err := s.admit(ctx, api, name, r.key); err != nil {
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

// dry reports whether a request is a dry run.
func dry(in any) bool {
	field := reflect.ValueOf(in).Elem().FieldByName("DryRun")
	if !field.IsValid() {
		return false
	}
	flag, ok := field.Interface().(*bool)
	return ok && flag != nil && *flag
}

// short returns the part of a name after the last separator.
func short(name, separator string) string { return name[strings.LastIndex(name, separator)+1:] }
