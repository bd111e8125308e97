package snapshot

import (
	"fmt"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// A NodePool and its GPUNodeClass both say when nodes are given back. What either of them forbids is not done, and the longer of two times counts. The API
// server's defaults of a NodePool, WhenEmptyOrUnderutilized and 0s, leave the decision to the GPUNodeClass.

// MovesPods reports whether pods may be moved so that the pool's nodes cost less.
func (p *Pool) MovesPods() bool {
	switch p.NodePool.Spec.Disruption.ConsolidationPolicy {
	case "", karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, karpv1.ConsolidationPolicyBalanced:
		return p.Class != nil && p.Class.Spec.Consolidation.MovesPods() && p.KeepsIdle() == ""
	case karpv1.ConsolidationPolicyWhenEmpty:
	}
	return false // Also with a policy of a later version of Karpenter, which the condition FieldsHonored names.
}

// KeepsIdle returns why the NodePool keeps idle nodes; "" when it does not.
func (p *Pool) KeepsIdle() string {
	if p.NodePool.Spec.Disruption.ConsolidateAfter.Duration != nil {
		return ""
	}
	return fmt.Sprintf("spec.disruption.consolidateAfter of NodePool %s is Never; 0s leaves it to the GPUNodeClass", p.NodePool.Name)
}

// IdleAfter returns how long a node of the pool is idle before it is given back. never reports that the GPUNodeClass keeps idle nodes, or that its idleAfter
// cannot be read, which its condition Accepted says. Where the GPUNodeClass is gone the default holds, so that its nodes are not paid for without end.
func (p *Pool) IdleAfter() (after time.Duration, never bool) {
	var consolidation v1alpha1.Consolidation
	if p.Class != nil {
		consolidation = p.Class.Spec.Consolidation
	}
	after, never, err := consolidation.IdleDuration()
	if err != nil || never {
		return 0, true
	}
	return max(after, p.consolidateAfter()), false
}

func (p *Pool) consolidateAfter() time.Duration {
	if d := p.NodePool.Spec.Disruption.ConsolidateAfter.Duration; d != nil {
		return *d
	}
	return 0
}

// Quiet reports whether no pod came or went on a node for consolidateAfter, as in Karpenter: the NodeClaim says when the last one did. Where none has yet it
// counts from when the node was initialized.
func (p *Pool) Quiet(m *Machine, now time.Time) bool {
	last := m.Claim.Status.LastPodEventTime.Time
	if last.IsZero() {
		last = Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized).LastTransitionTime.Time
	}
	return !now.Before(last.Add(p.consolidateAfter()))
}
