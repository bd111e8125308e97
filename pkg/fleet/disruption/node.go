package disruption

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/records"
)

// Disrupting reports whether the Node has the taint of a disrupted machine, or the annotation with its time. Either is enough.
func Disrupting(m *records.Machine) bool {
	return m.Node != nil && (Tainted(m.Node) || since(m, v1alpha1.DisruptingSinceAnnotation) != nil)
}

// Tainted reports whether the Node has the taint of a disrupted machine.
func Tainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.DisruptingTaintKey })
}

// HasSurplusTaint reports whether the scheduler prefers other Nodes.
func HasSurplusTaint(m *records.Machine) bool {
	return m.Node != nil && slices.ContainsFunc(m.Node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.SurplusTaintKey })
}

// SetSurplusTaint adds the surplus taint, so that the scheduler prefers other Nodes, or removes it.
func SetSurplusTaint(node *corev1.Node, away bool) {
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.SurplusTaintKey })
	if away {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.SurplusTaintKey, Effect: corev1.TaintEffectPreferNoSchedule})
	}
}

// NotReady reports whether a Node has the condition Ready and is not ready. It returns false for nil.
func NotReady(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	return i >= 0 && node.Status.Conditions[i].Status != corev1.ConditionTrue
}

// drainOver reports whether a machine is being deleted and its drain has ended.
func drainOver(m *records.Machine, now time.Time) bool {
	until := timeIn(m.Claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	return m.Deleting() && until != nil && !until.After(now)
}

// since returns the time in an annotation of the Node, or nil if it is missing or invalid.
func since(m *records.Machine, annotation string) *time.Time {
	if m.Node == nil {
		return nil
	}
	return timeIn(m.Node.Annotations[annotation])
}

// timeIn parses a time. It returns nil if it is invalid.
func timeIn(value string) *time.Time {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil
	}
	return &t
}

// since returns the time in an annotation of the Node. It also returns nil if the time comes from a clock that was ahead, so that the period begins
// again.
func (f *fleet) since(m *records.Machine, annotation string) *time.Time {
	t := since(m, annotation)
	if t != nil && t.After(f.now.Add(f.settle)) {
		return nil
	}
	return t
}
