package records

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot/facts"
)

// machineStatus is the state of a machine according to its NodeClaim and Node. It is remembered because decisions read it often.
type machineStatus struct {
	pool, replacing                                   string
	deleting, lost                                    bool
	launched, registered, initialized, awaitsReplicas bool
	// state is the state of the machine if it is not replaced.
	state lifecycle.State
	// closed reports whether the Node accepts no pods.
	closed bool
	// raised is when the promise was last raised.
	raised time.Time
	// breaks reports whether the machine becomes broken if its next step is late. waitsSince is the time from which it could take that step.
	breaks     bool
	waitsSince time.Time
}

// status returns the status of a machine. It is computed once for a machine of a view.
func (m *Machine) status() *machineStatus {
	if m.memo != nil && m.memo.machine.Claim == m.Claim && m.memo.machine.Node == m.Node {
		return &m.memo.status
	}
	return m.readStatus()
}

// Closed reports whether the Node of the machine accepts no pods.
func (m *Machine) Closed() bool { return m.status().closed }

func (m *Machine) readStatus() *machineStatus {
	conditions := m.Claim.Status.Conditions
	is := func(conditionType string) bool { return facts.Condition(conditions, conditionType).IsTrue() }
	passed := func(conditionType, nodeLabel string) bool {
		return m.Node != nil && is(conditionType) && m.Node.Labels[nodeLabel] == "true"
	}
	tainted := func(key string) bool { return m.Node != nil && facts.HasTaint(m.Node, key) }
	f := &machineStatus{
		pool: m.Claim.Labels[karpv1.NodePoolLabelKey], replacing: m.Claim.Annotations[v1alpha1.ReplacingAnnotation],
		deleting: !m.Claim.DeletionTimestamp.IsZero() || m.Node != nil && !m.Node.DeletionTimestamp.IsZero(),
		launched: is(karpv1.ConditionTypeLaunched), registered: passed(karpv1.ConditionTypeRegistered, karpv1.NodeRegisteredLabelKey),
		initialized: passed(karpv1.ConditionTypeInitialized, karpv1.NodeInitializedLabelKey),
	}
	f.closed, f.raised = m.Node != nil && !facts.TakesPods(m.Node), facts.TimeOf(m.Claim.Annotations[v1alpha1.ReplicasRaisedAnnotation])
	f.lost = f.deleting || tainted(karpv1.DisruptedTaintKey)
	f.awaitsReplicas = !f.registered || tainted(v1alpha1.ReplicasNotReadyTaintKey)
	f.state = m.stateWith(f)
	f.breaks = lifecycle.Of(f.state).Breaks
	if f.waitsSince = m.lastStepTime(); f.state == lifecycle.Initializing {
		f.breaks = f.breaks && !f.awaitsReplicas // Otherwise the startup taint is about to be removed.
		if ready := facts.TimeOf(m.Node.Annotations[v1alpha1.ReplicasReadySinceAnnotation]); ready.After(f.waitsSince) {
			f.waitsSince = ready
		}
	}
	return f
}

func (m *Machine) stateWith(f *machineStatus) lifecycle.State {
	switch {
	case f.deleting:
		return lifecycle.Draining
	case m.Node == nil && facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeRegistered).IsTrue():
		return lifecycle.NodeMissing
	case !f.registered && f.launched:
		return lifecycle.Launched
	case !f.registered:
		return lifecycle.Requested
	case f.awaitsReplicas && !m.ExposesAll():
		return lifecycle.Registered
	case !f.initialized || f.awaitsReplicas:
		return lifecycle.Initializing
	case facts.HasTaint(m.Node, v1alpha1.DisruptingTaintKey):
		return lifecycle.Disrupting
	default:
		return lifecycle.Started
	}
}
