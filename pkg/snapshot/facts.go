package snapshot

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
)

// facts are facts about a machine's state from its NodeClaim and Node. They are cached because decisions read them often.
type facts struct {
	pool, replacing                           string
	deleting, lost                            bool
	launched, registered, initialized, awaits bool
	// state is the state of the machine if it is not replaced.
	state lifecycle.State
	// closed reports whether the Node accepts no pods.
	closed bool
	// raised is when the promise was last raised.
	raised time.Time
	// breaks reports whether the machine becomes broken if its next step is late. waits is the time from which it could take that step.
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
	f.state = m.stateWith(f)
	f.breaks = lifecycle.Of(f.state).Breaks
	if f.waits = m.reached(); f.state == lifecycle.Initializing {
		f.breaks = f.breaks && !f.awaits // Otherwise the startup taint is about to be removed.
		if ready := TimeOf(m.Node.Annotations[v1alpha1.ReplicasReadySinceAnnotation]); ready.After(f.waits) {
			f.waits = ready
		}
	}
	return f
}

// stateWith returns the state of a machine with these facts.
func (m *Machine) stateWith(f *facts) lifecycle.State {
	switch {
	case f.deleting:
		return lifecycle.Draining
	case m.Node == nil && Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeRegistered).IsTrue():
		return lifecycle.NodeMissing
	case !f.registered && f.launched:
		return lifecycle.Launched
	case !f.registered:
		return lifecycle.Requested
	case f.awaits && !m.exposesAll():
		return lifecycle.Registered
	case !f.initialized || f.awaits:
		return lifecycle.Initializing
	case HasTaint(m.Node, v1alpha1.DisruptingTaintKey):
		return lifecycle.Disrupting
	default:
		return lifecycle.Started
	}
}
