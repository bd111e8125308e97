package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// term is a required or preferred term of a pod about the location of other pods.
type term struct {
	kind planner.RuleKind
	// field is the name of the field in the pod's spec.
	field string
	// key is the node label whose values are the domains.
	key string
	// selection is the key of the selection that matches the pods that count.
	selection  string
	maxSkew    int64
	minDomains int64
	// byAffinity and byTaints are true if, for Spread, only nodes count that match the pod's node affinity, or whose taints the pod tolerates.
	byAffinity, byTaints bool
	// group is the group whose pods count, instead of a selection, or nil.
	group *group
	// nothing is true if no pods count, but the node must still have the label. As in the scheduler, this is a spread constraint without a selector.
	nothing bool
}

func (t *term) name() string { return fmt.Sprintf("%s on %s", t.field, t.key) }

// perNode reports whether each node is its own domain.
func (t *term) perNode() bool { return t.key == corev1.LabelHostname }

// id returns a string that is equal for terms with the same demand.
func (t *term) id() string {
	return fmt.Sprintf("%s %s %d %d %t %t %t %s", t.kind, t.key, t.maxSkew, t.minDomains, t.byAffinity, t.byTaints, t.nothing, t.selection)
}

// terms are the required and preferred terms of a pod about the location of other pods.
type terms struct {
	required []term
	// affinity and spread are preferred terms, in the order in which Karpenter relaxes them. Preferred node affinity is relaxed between the two.
	affinity, spread []term
}

func termsOf(c *facts.Cluster, pod *corev1.Pod, known *selections) terms {
	var t terms
	for i := range pod.Spec.TopologySpreadConstraints {
		if constraint := &pod.Spec.TopologySpreadConstraints[i]; constraint.WhenUnsatisfiable == corev1.DoNotSchedule {
			t.required = append(t.required, spreadTerm(pod, constraint, known))
		}
	}
	for _, constraint := range preferredSpread(pod) {
		t.spread = append(t.spread, spreadTerm(pod, &constraint, known))
	}
	if pod.Spec.Affinity == nil {
		return t
	}
	if affinity := pod.Spec.Affinity.PodAffinity; affinity != nil {
		t.required = append(t.required, podAffinity(c, pod, affinity.RequiredDuringSchedulingIgnoredDuringExecution, known)...)
		for _, weighted := range heaviestFirst(affinity.PreferredDuringSchedulingIgnoredDuringExecution) {
			t.affinity = append(t.affinity, podAffinity(c, pod, []corev1.PodAffinityTerm{weighted.PodAffinityTerm}, known)...)
		}
	}
	t.required = append(t.required, antiAffinity(c, pod, known)...)
	if anti := pod.Spec.Affinity.PodAntiAffinity; anti != nil {
		for _, weighted := range heaviestFirst(anti.PreferredDuringSchedulingIgnoredDuringExecution) {
			t.affinity = append(t.affinity, antiAffinityTerm(c, pod, &weighted.PodAffinityTerm, known))
		}
	}
	return t
}

func spreadTerm(pod *corev1.Pod, constraint *corev1.TopologySpreadConstraint, known *selections) term {
	is := func(policy *corev1.NodeInclusionPolicy, otherwise corev1.NodeInclusionPolicy) bool {
		if policy == nil {
			policy = &otherwise
		}
		return *policy == corev1.NodeInclusionPolicyHonor
	}
	found := narrowed(constraint.LabelSelector, pod, constraint.MatchLabelKeys, nil)
	t := term{
		kind: planner.Spread, field: "topologySpreadConstraints", key: constraint.TopologyKey, maxSkew: int64(constraint.MaxSkew),
		byAffinity: is(constraint.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor), byTaints: is(constraint.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore),
		// The scheduler treats an empty selector as no selector.
		nothing:   constraint.LabelSelector == nil || found.Empty(),
		selection: known.add(selector{[]string{pod.Namespace}, pod.Namespace, found}),
	}
	if constraint.MinDomains != nil {
		t.minDomains = int64(*constraint.MinDomains)
	}
	return t
}

// preferredSpread returns the pod's preferred spread constraints in the order in which Karpenter relaxes them: it removes the first and moves the last into its
// place.
func preferredSpread(pod *corev1.Pod) []corev1.TopologySpreadConstraint {
	preferred := func(constraint corev1.TopologySpreadConstraint) bool {
		return constraint.WhenUnsatisfiable == corev1.ScheduleAnyway
	}
	left := slices.Clone(pod.Spec.TopologySpreadConstraints)
	var all []corev1.TopologySpreadConstraint
	for i := slices.IndexFunc(left, preferred); i >= 0; i = slices.IndexFunc(left, preferred) {
		all = append(all, left[i])
		left[i] = left[len(left)-1]
		left = left[:len(left)-1]
	}
	return all
}

// podAffinity returns the terms of a pod affinity. The scheduler counts only pods that match all terms.
func podAffinity(c *facts.Cluster, pod *corev1.Pod, affinity []corev1.PodAffinityTerm, known *selections) []term {
	if len(affinity) == 0 {
		return nil
	}
	all := make([]selector, len(affinity))
	for i := range affinity {
		all[i] = podSelector(c, pod, &affinity[i], known)
	}
	selection := known.add(all...)
	terms := make([]term, len(affinity))
	for i := range affinity {
		terms[i] = term{kind: planner.Together, field: "podAffinity", key: affinity[i].TopologyKey, selection: selection}
	}
	return terms
}

// antiAffinity returns the terms of a pod's required anti-affinity.
func antiAffinity(c *facts.Cluster, pod *corev1.Pod, known *selections) []term {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	required := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	terms := make([]term, len(required))
	for i := range required {
		terms[i] = antiAffinityTerm(c, pod, &required[i], known)
	}
	return terms
}

func antiAffinityTerm(c *facts.Cluster, pod *corev1.Pod, anti *corev1.PodAffinityTerm, known *selections) term {
	return term{kind: planner.Apart, field: "podAntiAffinity", key: anti.TopologyKey, selection: known.add(podSelector(c, pod, anti, known))}
}

func podSelector(c *facts.Cluster, pod *corev1.Pod, affinity *corev1.PodAffinityTerm, known *selections) selector {
	in := namespacesOf(c, pod.Namespace, affinity.Namespaces, affinity.NamespaceSelector, known)
	return selector{in.names, in.text, narrowed(affinity.LabelSelector, pod, affinity.MatchLabelKeys, affinity.MismatchLabelKeys)}
}

// heaviestFirst sorts terms by descending weight, the order in which Karpenter relaxes them.
func heaviestFirst(terms []corev1.WeightedPodAffinityTerm) []corev1.WeightedPodAffinityTerm {
	return slices.SortedStableFunc(slices.Values(terms), func(a, b corev1.WeightedPodAffinityTerm) int { return cmp.Compare(b.Weight, a.Weight) })
}
