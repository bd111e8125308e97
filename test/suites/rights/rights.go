// Package rights compares the roles in the chart with the requests that their service accounts send in tests. The last step of `make test-e2e` runs it.
package rights

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

// Right is a verb on a resource that a role grants to a service account.
type Right struct {
	cluster.Call
	// Role is the kind and the name of the role.
	Role string
	// Names are the names of the only objects that it is about. If there are none, it is about all.
	Names []string
}

// String returns the right without its user.
func (r Right) String() string { return r.Role + strings.TrimPrefix(r.Call.String(), r.User) }

// Of returns the rights that the roles among a chart's objects grant to service accounts. It ignores Kubernetes' default roles.
func Of(objects chart.Objects) ([]Right, error) {
	rules := map[string][]rbacv1.PolicyRule{}
	for _, o := range slices.Concat(objects.Kind("ClusterRole"), objects.Kind("Role")) {
		var role rbacv1.ClusterRole // A ClusterRole has all fields of a Role.
		if err := chart.Convert(o, &role); err != nil {
			return nil, fmt.Errorf("reading the %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		rules[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = role.Rules
	}
	var rights []Right
	for _, o := range slices.Concat(objects.Kind("ClusterRoleBinding"), objects.Kind("RoleBinding")) {
		var binding rbacv1.RoleBinding
		if err := chart.Convert(o, &binding); err != nil {
			return nil, fmt.Errorf("reading the %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		namespace := o.GetNamespace()
		if binding.RoleRef.Kind == "ClusterRole" {
			namespace = ""
		}
		for _, s := range binding.Subjects {
			for _, rule := range rules[binding.RoleRef.Kind+" "+namespace+"/"+binding.RoleRef.Name] {
				rights = append(rights, of(rule, Right{
					Call: cluster.Call{User: "system:serviceaccount:" + s.Namespace + ":" + s.Name, Namespace: o.GetNamespace()},
					Role: binding.RoleRef.Kind + " " + binding.RoleRef.Name,
				})...)
			}
		}
	}
	return rights, nil
}

func of(rule rbacv1.PolicyRule, r Right) []Right {
	var rights []Right
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				r.Group, r.Resource, r.Verb, r.Names = group, resource, verb, rule.ResourceNames
				rights = append(rights, r)
			}
		}
	}
	return rights
}

// neededBy reports whether a call needs the right. Watching also needs list: informers list if the API server does not stream lists (WatchList).
func (r Right) neededBy(c cluster.Call) bool {
	verb := r.Verb == c.Verb || r.Verb == "list" && c.Verb == "watch"
	return r.User == c.User && verb && r.Group == c.Group && r.Resource == c.Resource && (r.Namespace == "" || r.Namespace == c.Namespace)
}

// Wrong returns the rights that no call needs and the calls that no right allows. reasons say why a right is needed although no call shows it, keyed by the
// right's string. A reason for a right that does not exist is wrong too.
func Wrong(rights []Right, calls cluster.Calls, reasons map[string]string) []string {
	var wrong []string
	there := map[string]bool{}
	users := map[string]bool{}
	for _, r := range rights {
		there[r.String()], users[r.User] = true, true
		if reasons[r.String()] == "" && !slices.ContainsFunc(calls.Allowed, r.neededBy) {
			wrong = append(wrong, fmt.Sprintf("nothing needs the right %q", r))
		}
	}
	for _, c := range calls.Denied {
		if users[c.User] {
			wrong = append(wrong, fmt.Sprintf("there is no right to %q", c))
		}
	}
	for right := range reasons {
		if !there[right] {
			wrong = append(wrong, fmt.Sprintf("there is a reason for the right %q, which nobody has", right))
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}
