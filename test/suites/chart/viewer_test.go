package chart_test

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"karve.sh/karve/pkg/doctor"
)

// TestViewerHasTheRightsOfTheVerbs compares the role for users of kubectl karve with the list of what they need.
func TestViewerHasTheRightsOfTheVerbs(t *testing.T) {
	type grant struct{ verb, group, resource, name string }
	wanted := map[grant]bool{}
	for _, w := range doctor.UserRights(doctor.Namespaces{Controller: "controller", Agents: "agents", Prometheus: "prometheus"}) {
		if !w.Apart {
			wanted[grant{w.Verb, w.Group, w.Resource, w.Name}] = true
		}
	}
	roles := named[rbacv1.ClusterRole](t, objects(t, needed), "ClusterRole")
	for _, rule := range roles["karve-viewer"].Rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						g := grant{verb, group, resource, name}
						if !wanted[g] && group != "karve.sh" { // It is the rule of the role karve-view.
							t.Errorf("no verb needs that a viewer may %+v", g)
						}
						delete(wanted, g)
					}
				}
			}
		}
	}
	for g := range wanted {
		t.Errorf("a viewer may not %+v", g)
	}
	view := roles["karve-view"]
	reads := []string{"get", "list", "watch"}
	if view.Labels["rbac.authorization.k8s.io/aggregate-to-view"] != "true" || len(view.Rules) != 1 || !slices.Equal(view.Rules[0].APIGroups, []string{"karve.sh"}) || !slices.Equal(view.Rules[0].Verbs, reads) {
		t.Errorf("karve-view is %+v", view)
	}
}
