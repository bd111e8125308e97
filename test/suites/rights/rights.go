// Package rights compares the roles that the chart makes with what their service accounts ask of the API server in tests. The last step of `make test-e2e` does.
package rights

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

// Right is one verb on one resource that a role gives to a service account.
type Right struct {
	cluster.Call
	// Role is the kind and the name of the role.
	Role string
}

// String leaves out whose the right is.
func (r Right) String() string { return r.Role + strings.TrimPrefix(r.Call.String(), r.User) }

// Of are the rights that the roles among a chart's objects give to service accounts. Roles that Kubernetes has anyway are not among them.
func Of(objects chart.Objects) ([]Right, error) {
	rules := map[string][]rbacv1.PolicyRule{}
	for _, o := range slices.Concat(objects.Kind("ClusterRole"), objects.Kind("Role")) {
		var role rbacv1.ClusterRole // A Role's fields are among a ClusterRole's.
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
				r.Group, r.Resource, r.Verb = group, resource, verb
				rights = append(rights, r)
			}
		}
	}
	return rights
}

// neededBy says whether a call needs the right. Who watches needs to list as well: informers do so where the API server does not stream lists (WatchList).
func (r Right) neededBy(c cluster.Call) bool {
	verb := r.Verb == c.Verb || r.Verb == "list" && c.Verb == "watch"
	return r.User == c.User && verb && r.Group == c.Group && r.Resource == c.Resource && (r.Namespace == "" || r.Namespace == c.Namespace)
}

// Wrong says what is wrong with the rights: those that no call needs, and calls for which there is none. Reasons are why a right is needed all the same, by the
// right as it is printed; one for a right that is not there is wrong too.
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
