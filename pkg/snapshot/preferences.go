package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/records"
)

// addPreferences adds the preferences of a class's pods, in the order in which Karpenter relaxes them: pod affinity and pod anti-affinity by descending
// weight, then node affinity, topology spread, and last the taints with the effect PreferNoSchedule.
func (r *rules) addPreferences(class int) {
	w := r.waiting[class]
	for i := range w.terms.affinity {
		r.addPodPreference(class, &w.terms.affinity[i])
	}
	r.addNodePreferences(class)
	for i := range w.terms.spread {
		r.addPodPreference(class, &w.terms.spread[i])
	}
	r.addPlacePreference(class, func(taints []corev1.Taint, _ string, _ map[string]string) bool {
		return w.demand.Untolerated(taints, isPreferNoSchedule) == nil
	})
}

func isPreferNoSchedule(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectPreferNoSchedule }

// addPodPreference adds a preference for the location of other pods. Anti-affinity to running pods becomes a preference for places, because rules do not cover what
// running pods forbid.
func (r *rules) addPodPreference(class int, t *term) {
	if t.kind == planner.Apart {
		a := avoided{nodes: map[string]bool{}, domains: map[string]map[string]bool{}}
		for s := range r.running.countByNode(t.selection) {
			a.add(t, s.Node)
		}
		r.addPlacePreference(class, func(_ []corev1.Taint, node string, labels map[string]string) bool { return !a.holds(node, labels) })
	}
	if rule := r.addRule(class, t, true); rule >= 0 {
		c := &r.view.Classes[class]
		c.Preferences = append(c.Preferences, planner.Preference{Rule: rule})
	}
}

// addNodePreferences adds the pods' preferred node affinity. Karpenter applies only the term with the highest weight, and relaxes it to the next one. So each
// preference is met by nodes that match its term or one with a higher weight. All preferences together mean the first term. Without the first preference,
// they mean the first or the second term.
func (r *rules) addNodePreferences(class int) {
	affinity := r.waiting[class].pod().Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil {
		return
	}
	preferred := slices.SortedStableFunc(slices.Values(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution),
		func(a, b corev1.PreferredSchedulingTerm) int { return int(b.Weight) - int(a.Weight) })
	terms := make([]*nodeaffinity.LazyErrorNodeSelector, len(preferred))
	for i := range preferred {
		terms[i] = nodeaffinity.NewLazyErrorNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{preferred[i].Preference}})
	}
	// Each place counts from the first term that matches it.
	first := func(name string, labels map[string]string) int {
		node := records.NodeOf(name, labels)
		return slices.IndexFunc(terms, func(term *nodeaffinity.LazyErrorNodeSelector) bool {
			matches, err := term.Match(node)
			return err == nil && matches
		})
	}
	c := &r.view.Classes[class]
	offerings, nodes, counts := make([]int, len(c.Offerings)), make([]int, len(c.Nodes)), make([]bool, len(terms)+1)
	for i, at := range c.Offerings {
		offerings[i] = first("", r.view.Offerings[at].Labels)
		counts[offerings[i]+1] = true
	}
	for i, at := range c.Nodes {
		nodes[i] = first(r.rooms[at].nodeName, r.rooms[at].labels)
		counts[nodes[i]+1] = true
	}
	from := func(places, firsts []int, term int) (of []int) {
		for i, place := range places {
			if firsts[i] >= 0 && firsts[i] <= term {
				of = append(of, place)
			}
		}
		return of
	}
	for term := range terms {
		if counts[term+1] { // The others add no place.
			addPreference(c, planner.Preference{Rule: -1, Offerings: from(c.Offerings, offerings, term), Nodes: from(c.Nodes, nodes, term)})
		}
	}
}

// addPlacePreference adds a preference for the class's places for which grants is true.
func (r *rules) addPlacePreference(class int, grants func(taints []corev1.Taint, node string, labels map[string]string) bool) {
	c := &r.view.Classes[class]
	preference := planner.Preference{Rule: -1}
	for _, i := range c.Offerings {
		taints := r.view.Pools[r.view.Snapshot.Offerings[i].Pool].NodePool.Spec.Template.Spec.Taints
		if grants(taints, "", r.view.Offerings[i].Labels) {
			preference.Offerings = append(preference.Offerings, i)
		}
	}
	for _, i := range c.Nodes {
		if room := &r.rooms[i]; grants(room.taints, room.nodeName, room.labels) {
			preference.Nodes = append(preference.Nodes, i)
		}
	}
	addPreference(c, preference)
}

// addPreference adds a preference for places, unless it has all or none of those of the class.
func addPreference(c *planner.Class, preference planner.Preference) {
	granted := len(preference.Offerings) + len(preference.Nodes)
	if granted > 0 && granted < len(c.Offerings)+len(c.Nodes) && !repeatsLast(c.Preferences, preference) {
		c.Preferences = append(c.Preferences, preference)
	}
}

// repeatsLast reports whether a preference equals the last one. Relaxing only one of them would change nothing.
func repeatsLast(preferences []planner.Preference, preference planner.Preference) bool {
	if len(preferences) == 0 {
		return false
	}
	last := preferences[len(preferences)-1]
	return last.Rule == preference.Rule && slices.Equal(last.Offerings, preference.Offerings) && slices.Equal(last.Nodes, preference.Nodes)
}
