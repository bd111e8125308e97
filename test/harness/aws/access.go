package aws

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ssm"
)

// Policy is an IAM policy without conditions, which is all that read-only programs need.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements.html
type Policy struct {
	Version   string
	Statement []struct {
		Sid, Effect      string
		Action, Resource OneOrMore
	}
}

// OneOrMore is a list that IAM also accepts as a single string.
type OneOrMore []string

// UnmarshalJSON reads a string or a list of strings.
func (o *OneOrMore) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*o = OneOrMore{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(o))
}

// has reports whether one of the patterns matches.
func (o OneOrMore) has(text string) bool {
	return slices.ContainsFunc(o, func(pattern string) bool { return like(pattern, text) })
}

// allows reports whether the policy allows an action, such as "ec2:DescribeImages", on a resource. A statement that denies it wins.
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

// EnvAs returns the environment of a program whose AWS calls are restricted to an IAM policy. The name becomes its access key. Programs with the same
// name share the policy that was set last. A program with Env may make every call.
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

// authorize returns an error if the policy of the request's signer does not allow the action.
func (s *Server) authorize(r request, api service, action string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.policies[r.key]; ok && !p.allows(r.service+":"+action, r.resource(action)) {
		return api.denied
	}
	return nil
}

// resource returns the ARN that a request is about. Only requests for SSM parameters have one, because the policies tell no other resources apart.
func (r request) resource(action string) string {
	var in ssm.GetParameterInput
	if action == "GetParameter" && json.Unmarshal(r.body, &in) == nil {
		return "arn:aws:ssm:" + r.region + "::parameter" + value(in.Name)
	}
	return "*"
}

// signed returns the request with the access key, the region and the service of its signature.
func signed(r *http.Request) (request, bool) {
	found := scope.FindStringSubmatch(r.Header.Get("Authorization"))
	if found == nil {
		return request{}, false
	}
	return request{Request: r, key: found[1], region: found[2], service: found[3]}, true
}
