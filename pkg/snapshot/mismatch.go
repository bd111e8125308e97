package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// A label that another component writes may have another value than foretold, or not appear, and another component may add a taint. Then the node does not admit
// the pods for which it was launched, and another node would not either. So nothing more is launched for these pods. A node shows the difference as long as it
// exists, and the status of its GPUNodeClass afterwards.

// mismatches finds the machines whose labels or taints do not admit the pods for which they were launched.
type mismatches struct {
	view *View
	// launched has the machines by the shapes of the pods for which they were launched. It has those for headroom below "".
	launched map[string][]*records.Machine
}

func (v *View) newMismatches() *mismatches {
	v.mismatches = map[string][]v1alpha1.NodeMismatch{}
	return &mismatches{view: v}
}

func (m *mismatches) launchedFor(short string) []*records.Machine {
	if m.launched == nil {
		m.launched = map[string][]*records.Machine{}
		for i := range m.view.Machines {
			machine := &m.view.Machines[i]
			if machine.Node == nil {
				continue
			}
			planned := machine.Claim.Annotations[v1alpha1.PlannedPodsAnnotation]
			if planned == "" {
				m.launched[""] = append(m.launched[""], machine)
			}
			for key := range countsOf(planned) {
				m.launched[key] = append(m.launched[key], machine)
			}
		}
	}
	return m.launched[short]
}

// forClass returns a mismatch because of which nothing is launched for the class, or nil if there is none.
func (m *mismatches) forClass(w *waitingClass, a *admission) *v1alpha1.NodeMismatch {
	return m.find(m.launchedFor(w.short), w, a, nil)
}

// forHeadroom is like forClass for headroom, whose machines do not say for what they were launched.
func (m *mismatches) forHeadroom(w *waitingClass, a *admission) *v1alpha1.NodeMismatch {
	empty := slices.DeleteFunc(slices.Clone(m.launchedFor("")), func(m *records.Machine) bool { return !m.Empty() })
	return m.find(empty, w, a, func(machine *records.Machine) bool {
		return a.demand.Refusal(nil, machine.Node.Name, machine.Planned()) == nil
	})
}

// find looks for a machine that does not admit the pods. If fit is not nil, the others do not count.
func (m *mismatches) find(machines []*records.Machine, w *waitingClass, a *admission, fit func(*records.Machine) bool) *v1alpha1.NodeMismatch {
	v := m.view
	var found *v1alpha1.NodeMismatch
	for _, machine := range machines {
		pool := v.PoolNamed(machine.Pool())
		if pool == nil || pool.Class == nil {
			continue
		}
		if difference := v.difference(machine, w, &a.demand); difference != nil && (fit == nil || fit(machine)) && hasCurrentTemplate(machine, pool) {
			difference.Pods, difference.Since = w.short, metav1.NewTime(v.Now().UTC())
			difference.NodePoolGeneration, difference.ClassGeneration, difference.NodeClassGeneration = v.generations(pool)
			v.mismatches[pool.Class.Name] = append(v.mismatches[pool.Class.Name], *difference)
			found = difference
		}
	}
	if found != nil {
		return found
	}
	for i := range v.Pools {
		if class := v.Pools[i].Class; class != nil {
			for j := range class.Status.NodeMismatches {
				if known := &class.Status.NodeMismatches[j]; known.Pods == w.short && known.NodePool == v.Pools[i].NodePool.Name && v.stillApplies(known) && !v.isCorrected(known, &a.demand) {
					return known
				}
			}
		}
	}
	return nil
}

// hasCurrentTemplate reports whether a machine was launched with the current template of its pool.
func hasCurrentTemplate(m *records.Machine, pool *Pool) bool {
	hash, version := m.Claim.Annotations[karpv1.NodePoolHashAnnotationKey], m.Claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey]
	return hash == pool.NodePool.Hash() && version == karpv1.NodePoolHashVersion
}

// generations returns the generations of the objects with whose change a mismatch ends.
func (v *View) generations(pool *Pool) (nodePool, class, nodeClass int64) {
	return pool.NodePool.Generation, pool.Class.Generation, v.cluster.NodeClasses[pool.Class.Spec.NodeClassRef].Generation
}

// stillApplies reports whether the NodePool and its classes are the same as when a mismatch was found.
func (v *View) stillApplies(known *v1alpha1.NodeMismatch) bool {
	pool := v.PoolNamed(known.NodePool)
	if pool == nil || pool.Class == nil {
		return false
	}
	nodePool, class, nodeClass := v.generations(pool)
	return known.NodePoolGeneration == nodePool && known.ClassGeneration == class && known.NodeClassGeneration == nodeClass
}

// isCorrected reports whether the node of a mismatch admits the pods now.
func (v *View) isCorrected(known *v1alpha1.NodeMismatch, d *records.Demand) bool {
	return slices.ContainsFunc(v.Machines, func(m records.Machine) bool {
		return m.Claim.Name == known.NodeClaim && m.Node != nil && d.Refusal(nil, m.Node.Name, nodelabels.Labels{Known: m.Node.Labels}) == nil && d.Untolerated(m.ForeignTaints(), facts.KeepsPodsAway) == nil
	})
}

// difference returns the label or taint because of which a machine does not admit the pods for which it was launched, or nil if it admits them or may still get the
// label. If such pods run there, it has admitted them.
func (v *View) difference(m *records.Machine, w *waitingClass, d *records.Demand) *v1alpha1.NodeMismatch {
	shows := nodelabels.Labels{Known: m.Node.Labels}
	if m.Settling(v.Now()) {
		shows = m.LabelsWithDoubts()
	}
	labeled := d.Refusal(nil, m.Node.Name, shows) == nil
	var taint *corev1.Taint
	if labeled && !m.Deleting() {
		taint = d.Untolerated(m.ForeignTaints(), facts.KeepsPodsAway)
	}
	if labeled && taint == nil {
		return nil
	}
	if slices.ContainsFunc(m.Pods, func(pod *corev1.Pod) bool {
		return facts.IsWorkload(pod) && claims.RequestsGPU(&pod.Spec) && v.keyOf(pod) == w.short
	}) {
		return nil
	}
	if taint != nil {
		return &v1alpha1.NodeMismatch{NodePool: m.Pool(), NodeClaim: m.Claim.Name, Taint: taint.ToString()}
	}
	planned := m.Planned()
	key := differingLabel(d, planned, shows)
	expected := planned.Known[key]
	if doubt, ok := planned.Doubts.About(key); ok && expected == "" {
		expected = doubt.String()
	}
	if expected == shows.Known[key] {
		expected = "" // The NodeClaim already had the label.
	}
	return &v1alpha1.NodeMismatch{NodePool: m.Pool(), NodeClaim: m.Claim.Name, Label: key, Expected: expected, Actual: shows.Known[key]}
}

// differingLabel returns the label because of which a node does not admit pods as planned.
func differingLabel(d *records.Demand, planned, shows nodelabels.Labels) string {
	var mentioned []corev1.NodeSelectorRequirement
	for _, key := range d.Selectors {
		mentioned = append(mentioned, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{d.Pod.Spec.NodeSelector[key]}})
	}
	for _, term := range records.RequiredTerms(d.Pod) {
		mentioned = append(mentioned, term.MatchExpressions...)
	}
	for _, least := range []nodelabels.Verdict{nodelabels.Yes, nodelabels.No} { // The first that was planned to be met, if there is one.
		for i := range mentioned {
			if planned.Judge(&mentioned[i]) >= least && shows.Judge(&mentioned[i]) < nodelabels.Yes {
				return mentioned[i].Key
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(planned.Known)) { // A volume mentions it.
		if shows.Known[key] != planned.Known[key] {
			return key
		}
	}
	return "unknown"
}

// awaitCorrection makes a class wait because of a mismatch. It may still go to nodes that show its labels. Others were launched for other pods, which would need
// another node if the class got this one.
func (v *View) awaitCorrection(class *planner.Class, a *admission, mismatch *v1alpha1.NodeMismatch) {
	if mismatch == nil {
		return
	}
	class.Nodes = slices.DeleteFunc(slices.Clone(class.Nodes), func(i int) bool {
		m := v.rooms[i].machine
		return m != nil && (m.Node == nil || mismatch.Taint == "" && a.demand.Refusal(nil, m.Node.Name, nodelabels.Labels{Known: m.Node.Labels}) != nil)
	})
	if len(class.Offerings) == 0 {
		return
	}
	of := func(value string) string { return cmp.Or(value, "missing") }
	refusal := &planner.Refusal{Reason: planner.ReasonLabels, Message: fmt.Sprintf(
		"the node of NodeClaim %s was launched for such pods and does not admit them: its label %s is %s, and was expected to be %s. Nothing more is launched for them until NodePool %s, its "+
			"classes or the pods change, or the node gets the label: see what writes the label on the node", mismatch.NodeClaim, mismatch.Label, of(mismatch.Actual), of(mismatch.Expected), mismatch.NodePool)}
	if mismatch.Taint != "" {
		refusal = &planner.Refusal{Reason: planner.ReasonTaints, Message: fmt.Sprintf(
			"the node of NodeClaim %s was launched for such pods and does not admit them: it has the taint %s, which NodePool %s does not have. Nothing more is launched for them until the taint is "+
				"removed, or the NodePool, its classes or the pods change: add the taint to spec.template.spec.startupTaints of the NodePool if it is removed later, or else to spec.template.spec.taints", mismatch.NodeClaim, mismatch.Taint, mismatch.NodePool)}
	}
	class.Offerings, class.NoOffering = nil, refusal
	if len(class.Nodes) == 0 && class.Blocked == nil {
		class.Blocked = refusal
	}
}

// NodeMismatches returns the mismatches of a GPUNodeClass: those of its status that last, and those found by the view, the newest
// [v1alpha1.MostNodeMismatches].
func (v *View) NodeMismatches(class *v1alpha1.GPUNodeClass) []v1alpha1.NodeMismatch {
	keyOf := func(m *v1alpha1.NodeMismatch) string {
		return strings.Join([]string{m.NodePool, m.NodeClaim, m.Pods}, "\x00")
	}
	known := map[string]bool{}
	var all []v1alpha1.NodeMismatch
	for i := range class.Status.NodeMismatches {
		m := &class.Status.NodeMismatches[i]
		if v.stillApplies(m) && !v.isOver(m) {
			all, known[keyOf(m)] = append(all, *m), true
		}
	}
	for i := range v.mismatches[class.Name] {
		if m := &v.mismatches[class.Name][i]; !known[keyOf(m)] {
			all, known[keyOf(m)] = append(all, *m), true
		}
	}
	return all[max(0, len(all)-v1alpha1.MostNodeMismatches):]
}

// isOver reports whether the node of a mismatch has the label with the expected value, or no longer has the taint.
func (v *View) isOver(known *v1alpha1.NodeMismatch) bool {
	return slices.ContainsFunc(v.Machines, func(m records.Machine) bool {
		if m.Claim.Name == known.NodeClaim && m.Node != nil && known.Taint != "" {
			return !slices.ContainsFunc(m.Node.Spec.Taints, func(t corev1.Taint) bool { return t.ToString() == known.Taint })
		}
		return m.Claim.Name == known.NodeClaim && m.Node != nil && known.Expected != "" && m.Node.Labels[known.Label] == known.Expected
	})
}
