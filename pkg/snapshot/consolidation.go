package snapshot

import (
	"fmt"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// A NodePool and its GPUNodeClass both control when nodes are removed. Karve removes nodes only if both allow it, and uses the longer of the two times. With
// the API server's defaults for a NodePool, WhenEmptyOrUnderutilized and 0s, the GPUNodeClass decides.

// MovesPods reports whether Karve may move pods to reduce the cost of the pool's nodes.
func (p *Pool) MovesPods() bool {
	switch p.NodePool.Spec.Disruption.ConsolidationPolicy {
	case "", karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, karpv1.ConsolidationPolicyBalanced:
		return p.Class != nil && p.Class.Spec.Consolidation.MovesPods() && p.KeepsIdle() == ""
	case karpv1.ConsolidationPolicyWhenEmpty:
	}
	return false // This includes policies of later Karpenter versions. The condition FieldsHonored names them.
}

// KeepsIdle returns why the NodePool keeps idle nodes, or "" if it does not.
func (p *Pool) KeepsIdle() string {
	if p.NodePool.Spec.Disruption.ConsolidateAfter.Duration != nil {
		return ""
	}
	return fmt.Sprintf("spec.disruption.consolidateAfter of NodePool %s is Never; 0s leaves it to the GPUNodeClass", p.NodePool.Name)
}

// IdleAfter returns how long a node of the pool must be idle before Karve removes it. never is true if the GPUNodeClass keeps idle nodes, or if its
// idleAfter is invalid, which its condition Accepted reports. If the GPUNodeClass does not exist, the default applies, so that its nodes do not run forever.
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

// Quiet reports whether no pod was added to or removed from a node for consolidateAfter, as in Karpenter. The NodeClaim has the time of the last such event.
// If there was none, the time when the node was initialized counts.
func (p *Pool) Quiet(m *records.Machine, now time.Time) bool {
	last := m.Claim.Status.LastPodEventTime.Time
	if last.IsZero() {
		last = facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized).LastTransitionTime.Time
	}
	return !now.Before(last.Add(p.consolidateAfter()))
}
