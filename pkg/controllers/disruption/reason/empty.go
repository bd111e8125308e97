package reason

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// empty is for machines that have been idle for their pool's idleAfter. They need no replacement, and carry no mark on the NodeClaim: since when a machine is idle
// is an annotation of its Node.
type empty struct{}

func (empty) Name() karpv1.DisruptionReason { return karpv1.DisruptionReasonEmpty }

func (empty) Candidate(m *Machine, _ time.Time) *Candidate {
	if m.NodePool.IdleAfter == nil || !m.Started() || !m.Idle() || m.needed() {
		return nil
	}
	return &Candidate{Reason: karpv1.DisruptionReasonEmpty}
}

// Blocked asks of pods without a replica, where the machine has some, whether they may be moved.
func (empty) Blocked(m *Machine, _ *Candidate, asked []*corev1.Pod, pods Pods) string {
	if why := cmp.Or(m.NodePool.KeepsIdle, Protected(m, asked, pods)); why != "" || m.Empty() {
		return why
	}
	return pods.Keeps(m.Machine)
}

func (empty) Allowed(p *Pool) int { return p.Budgets[karpv1.DisruptionReasonEmpty] }

func (empty) Ended(*Machine) (string, bool) { return asToday, true }
