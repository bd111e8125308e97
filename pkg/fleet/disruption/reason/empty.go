package reason

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// empty is for machines that have been idle for the idleAfter of their pool. They need no replacement, and their NodeClaim has no mark. An annotation
// of the Node has the time at which it became idle.
type empty struct{ common }

func (empty) Candidate(m *Machine, _ time.Time) *Candidate {
	if m.NodePool.IdleAfter == nil || !m.Started() || !m.Idle() || m.needed() {
		return nil
	}
	return &Candidate{Reason: karpv1.DisruptionReasonEmpty}
}

// Blocked also checks whether the foreign pods of the machine, if any, may be moved.
func (empty) Blocked(m *Machine, _ *Candidate, asked []*corev1.Pod, pods Pods) string {
	if why := cmp.Or(m.NodePool.KeepsIdle, Protected(m, asked, pods)); why != "" || m.Empty() {
		return why
	}
	return pods.Keeps(m.Machine)
}
