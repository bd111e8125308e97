package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"karve.sh/karve/pkg/planner"
)

// preferences are what the pods of a class would like, in the order in which Karpenter gives it up: affinity to pods, anti-affinity to pods, each the
// heaviest first, affinity to nodes, spread, and last the taints that only ask to stay away.
func (r *rules) preferences(class int) {
	w := r.waiting[class]
	for i := range w.terms.affinity {
		r.prefer(class, &w.terms.affinity[i])
	}
	r.preferredNodes(class)
	for i := range w.terms.spread {
		r.prefer(class, &w.terms.spread[i])
	}
	r.preferPlaces(class, func(taints []corev1.Taint, _ string, _ map[string]string) bool {
		return w.demand.untolerated(taints, onlyAsks) == nil
	})
}

func onlyAsks(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectPreferNoSchedule }

// prefer adds a preference about where other pods are. What running pods forbid is not a matter of rules, so anti-affinity to them is a preference for places.
func (r *rules) prefer(class int, t *term) {
	if t.kind == planner.Apart {
		a := avoided{nodes: map[string]bool{}, domains: map[string]map[string]bool{}}
		for node := range r.running.on(t.selection) {
			a.add(t, &r.running.Nodes[node])
		}
		r.preferPlaces(class, func(_ []corev1.Taint, node string, labels map[string]string) bool { return !a.holds(node, labels) })
	}
	if rule := r.add(class, t, true); rule >= 0 {
		c := &r.view.Classes[class]
		c.Wishes = append(c.Wishes, planner.Wish{Rule: rule})
	}
}

// preferredNodes adds what the pods prefer of nodes. Karpenter holds to the heaviest term alone, and when it has to give that up to the next, so
// each preference is for what it or a heavier one asks for: all together they are the first, and without that the second.
func (r *rules) preferredNodes(class int) {
	affinity := r.waiting[class].pod().Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil {
		return
	}
	preferred := slices.SortedStableFunc(slices.Values(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution),
		func(a, b corev1.PreferredSchedulingTerm) int { return int(b.Weight) - int(a.Weight) })
	var asked []corev1.NodeSelectorTerm
	for _, p := range preferred {
		asked = append(asked, p.Preference)
		nodes := nodeaffinity.NewLazyErrorNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: asked})
		r.preferPlaces(class, func(_ []corev1.Taint, name string, labels map[string]string) bool {
			matches, err := nodes.Match(nodeOf(name, labels))
			return err == nil && matches
		})
	}
}

// preferPlaces adds a preference for the places among those of the class that grant it, unless all do or none does.
func (r *rules) preferPlaces(class int, grants func(taints []corev1.Taint, node string, labels map[string]string) bool) {
	c := &r.view.Classes[class]
	wish := planner.Wish{Rule: -1}
	for _, i := range c.Offerings {
		taints := r.view.Pools[r.view.Snapshot.Offerings[i].Pool].NodePool.Spec.Template.Spec.Taints
		if grants(taints, "", r.view.Offerings[i].Labels) {
			wish.Offerings = append(wish.Offerings, i)
		}
	}
	for _, i := range c.Nodes {
		if room := &r.rooms[i]; grants(room.taints, room.nodeName, room.labels) {
			wish.Nodes = append(wish.Nodes, i)
		}
	}
	granted := len(wish.Offerings) + len(wish.Nodes)
	if granted > 0 && granted < len(c.Offerings)+len(c.Nodes) && !repeats(c.Wishes, wish) {
		c.Wishes = append(c.Wishes, wish)
	}
}

// repeats says whether a preference is the same as the last one, so that to give either up alone would change nothing.
func repeats(wishes []planner.Wish, wish planner.Wish) bool {
	if len(wishes) == 0 {
		return false
	}
	last := wishes[len(wishes)-1]
	return last.Rule == wish.Rule && slices.Equal(last.Offerings, wish.Offerings) && slices.Equal(last.Nodes, wish.Nodes)
}
