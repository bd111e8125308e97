package aws

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ssm"
)

// Policy is one of IAM, as far as the policies of programs that only read need it: without conditions.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements.html
type Policy struct {
	Version   string
	Statement []struct {
		Sid, Effect      string
		Action, Resource OneOrMore
	}
}

// OneOrMore is a list, for one of which IAM takes a text.
type OneOrMore []string

// UnmarshalJSON reads one string or a list of them.
func (o *OneOrMore) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*o = OneOrMore{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(o))
}

// has says whether one of the patterns matches.
func (o OneOrMore) has(text string) bool {
	return slices.ContainsFunc(o, func(pattern string) bool { return like(pattern, text) })
}

// allows says whether a policy lets its holder do something, "ec2:DescribeImages", with a resource. A statement that denies wins.
func (p Policy) allows(action, resource string) bool {
	allowed := false
	for _, s := range p.Statement {
		if s.Action.has(action) && s.Resource.has(resource) {
			if s.Effect != "Allow" {
				return false
			}
			allowed = true
		}
	}
	return allowed
}

// EnvAs is Env for a program that may do what an IAM policy allows and nothing else. The name is its access key's; every program with the name has the policy
// that was given last. Who uses Env may do everything.
func (s *Server) EnvAs(name string, document []byte) ([]string, error) {
	var p Policy
	if err := json.Unmarshal(document, &p); err != nil {
		return nil, fmt.Errorf("reading the IAM policy of %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policies[name] = p
	return s.env(name), nil
}

// authorize says whether who signed a request may make it.
func (s *Server) authorize(r request, api service, action string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.policies[r.key]; ok && !p.allows(r.service+":"+action, r.resource(action)) {
		return api.denied
	}
	return nil
}

// resource is what a request is about: of what a policy can tell apart, the parameters of SSM are all that is asked for.
func (r request) resource(action string) string {
	var in ssm.GetParameterInput
	if action == "GetParameter" && json.Unmarshal(r.body, &in) == nil {
		return "arn:aws:ssm:" + r.region + "::parameter" + value(in.Name)
	}
	return "*"
}

// signed reads who signed a request, and for which region and service.
func signed(r *http.Request) (request, bool) {
	found := scope.FindStringSubmatch(r.Header.Get("Authorization"))
	if found == nil {
		return request{}, false
	}
	return request{Request: r, key: found[1], region: found[2], service: found[3]}, true
}
