package snapshot

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
)

// facts are what the NodeClaim and the Node of a machine say of its state. Decisions ask for them again and again.
type facts struct {
	pool, replacing                           string
	deleting, lost                            bool
	launched, registered, initialized, awaits bool
	// state is the state of the machine if it is not replaced.
	state lifecycle.State
	// closed reports whether the Node takes no pods.
	closed bool
	// raised is when the promise was last raised.
	raised time.Time
	// breaks reports whether the machine becomes broken if it takes its next step too late, and waits is since when it could take that step.
	breaks bool
	waits  time.Time
}

// facts returns the facts of a machine. They are computed once for a machine of a view.
func (m *Machine) facts() *facts {
	if m.memo != nil && m.memo.machine.Claim == m.Claim && m.memo.machine.Node == m.Node {
		return &m.memo.facts
	}
	return m.learnFacts()
}

func (m *Machine) learnFacts() *facts {
	conditions := m.Claim.Status.Conditions
	is := func(conditionType string) bool { return Condition(conditions, conditionType).IsTrue() }
	passed := func(conditionType, nodeLabel string) bool {
		return m.Node != nil && is(conditionType) && m.Node.Labels[nodeLabel] == "true"
	}
	tainted := func(key string) bool { return m.Node != nil && HasTaint(m.Node, key) }
	f := &facts{
		pool: m.Claim.Labels[karpv1.NodePoolLabelKey], replacing: m.Claim.Annotations[v1alpha1.ReplacingAnnotation],
		deleting: !m.Claim.DeletionTimestamp.IsZero() || m.Node != nil && !m.Node.DeletionTimestamp.IsZero(),
		launched: is(karpv1.ConditionTypeLaunched), registered: passed(karpv1.ConditionTypeRegistered, karpv1.NodeRegisteredLabelKey),
		initialized: passed(karpv1.ConditionTypeInitialized, karpv1.NodeInitializedLabelKey),
	}
	f.closed, f.raised = m.Node != nil && !TakesPods(m.Node), TimeOf(m.Claim.Annotations[v1alpha1.ReplicasRaisedAnnotation])
	f.lost = f.deleting || tainted(karpv1.DisruptedTaintKey)
	f.awaits = !f.registered || tainted(v1alpha1.ReplicasNotReadyTaintKey)
	switch {
	case f.deleting:
		f.state = lifecycle.Draining
	case m.Node == nil && is(karpv1.ConditionTypeRegistered):
		f.state = lifecycle.NodeMissing
	case !f.registered && f.launched:
		f.state = lifecycle.Launched
	case !f.registered:
		f.state = lifecycle.Requested
	case f.awaits && !m.exposesAll():
		f.state = lifecycle.Registered
	case !f.initialized || f.awaits:
		f.state = lifecycle.Initializing
	case tainted(v1alpha1.DisruptingTaintKey):
		f.state = lifecycle.Disrupting
	default:
		f.state = lifecycle.Started
	}
	f.breaks = lifecycle.Of(f.state).Breaks
	if f.waits = m.reached(); f.state == lifecycle.Initializing {
		f.breaks = f.breaks && !f.awaits // Otherwise the startup taint is about to be taken off.
		if ready := TimeOf(m.Node.Annotations[v1alpha1.ReplicasReadySinceAnnotation]); ready.After(f.waits) {
			f.waits = ready
		}
	}
	return f
}
