package aws

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
)

// request is a request whose body was read.
type request struct {
	*http.Request

	key, region, service string // from its signature
	body                 []byte
}

// failure is an error as AWS returns it.
type failure struct {
	status        int
	code, message string
}

func (f failure) Error() string { return f.code + ": " + f.message }

func asFailure(err error) failure {
	var f failure
	if errors.As(err, &f) {
		return f
	}
	return failure{http.StatusInternalServerError, "InternalError", err.Error()}
}

func badRequest(code, message string) failure {
	return failure{http.StatusBadRequest, code, message}
}

// protocol is how clients talk to a service.
type protocol struct {
	action func(request) string
	read   func(r request, in any) error
	write  func(w http.ResponseWriter, action string, out any)
	fail   func(w http.ResponseWriter, f failure)

	throttled, denied failure
}

// ec2Protocol is EC2's variant of the query protocol.
var ec2Protocol = protocol{
	action: formAction,
	read:   readQuery,
	write: func(w http.ResponseWriter, action string, out any) {
		a := answer{item: "item", name: ec2Name}
		a.element(action+"Response", reflect.ValueOf(out))
		reply(w, http.StatusOK, "text/xml;charset=UTF-8", a.Bytes())
	},
	fail: func(w http.ResponseWriter, f failure) {
		var a answer
		a.within("Response", func() {
			a.within("Errors", func() { a.failure(f) })
		})
		reply(w, f.status, "text/xml;charset=UTF-8", a.Bytes())
	},
	throttled: failure{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."},
	denied: failure{
		http.StatusForbidden, "UnauthorizedOperation",
		"You are not authorized to perform this operation. User: " + caller + " is not authorized to perform this action because no identity-based policy allows it.",
	},
}

// queryProtocol is the protocol of the older services.
var queryProtocol = protocol{
	action: formAction,
	read:   readQuery,
	write: func(w http.ResponseWriter, action string, out any) {
		a := answer{item: "member", name: sameName}
		a.within(action+"Response", func() { a.element(action+"Result", reflect.ValueOf(out)) })
		reply(w, http.StatusOK, "text/xml", a.Bytes())
	},
	fail: func(w http.ResponseWriter, f failure) {
		var a answer
		a.within("ErrorResponse", func() { a.failure(f) })
		reply(w, f.status, "text/xml", a.Bytes())
	},
	throttled: badRequest("Throttling", "Rate exceeded"),
	denied:    failure{http.StatusForbidden, "AccessDenied", denial},
}

// jsonProtocol is the protocol of the newer services: the action is in a header, and the body uses the SDK's field names.
func jsonProtocol(version string) protocol {
	return protocol{
		action: func(r request) string { return short(r.Header.Get("X-Amz-Target"), ".") },
		read:   func(r request, in any) error { return json.Unmarshal(r.body, in) },
		write: func(w http.ResponseWriter, _ string, out any) {
			replyJSON(w, http.StatusOK, "application/x-amz-json-"+version, out)
		},
		fail:      failJSON,
		throttled: badRequest("ThrottlingException", "Rate exceeded"),
		denied:    badRequest("AccessDeniedException", denial),
	}
}

const (
	caller = "arn:aws:sts::" + account + ":assumed-role/karve/local"
	denial = "User: " + caller + " is not authorized to perform this action because no identity-based policy allows it"
)

func failJSON(w http.ResponseWriter, f failure) {
	w.Header().Set("X-Amzn-ErrorType", f.code)
	replyJSON(w, f.status, "application/json", map[string]string{"__type": f.code, "message": f.message})
}

func (a *answer) failure(f failure) {
	a.within("Error", func() {
		a.text("Code", f.code)
		a.text("Message", f.message)
	})
}

func reply(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone sees no error
}

func replyJSON(w http.ResponseWriter, status int, contentType string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		http.Error(w, "writing the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	reply(w, status, contentType, raw)
}

func formAction(r request) string {
	form, err := url.ParseQuery(string(r.body))
	if err != nil {
		return ""
	}
	return form.Get("Action")
}

func readQuery(r request, in any) error {
	form, err := url.ParseQuery(string(r.body))
	if err != nil {
		return err
	}
	return readForm(form, in)
}

// eksProtocol is REST. It supports one call of EKS, GET /clusters/<name>.
var eksProtocol = protocol{
	action: func(r request) string {
		if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/clusters/") {
			return "DescribeCluster"
		}
		return r.Method + " " + r.URL.Path
	},
	read: func(r request, in any) error {
		name := short(r.URL.Path, "/")
		reflect.ValueOf(in).Elem().FieldByName("Name").Set(reflect.ValueOf(&name))
		return nil
	},
	write: func(w http.ResponseWriter, _ string, out any) {
		replyJSON(w, http.StatusOK, "application/json", out)
	},
	fail:      failJSON,
	throttled: failure{http.StatusTooManyRequests, "ThrottlingException", "Rate exceeded"},
	denied:    failure{http.StatusForbidden, "AccessDeniedException", denial},
}
