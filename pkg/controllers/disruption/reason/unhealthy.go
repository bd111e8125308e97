package reason

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// unhealthy is for machines that have been unhealthy for longer than package repair tolerates. Machines whose kubelet does not respond are deleted and not
// replaced: see Forced.
type unhealthy struct{}

func (unhealthy) Name() karpv1.DisruptionReason { return Unhealthy }

func (unhealthy) Candidate(m *Machine, _ time.Time) *Candidate {
	if m.Health == nil || m.Health.Wait > 0 || Forced(m) {
		return nil
	}
	return &Candidate{Reason: Unhealthy, Word: Unhealthy, Message: m.Health.Message, Kept: m.Health.Kept, Eventual: true, Urgent: true}
}

func (unhealthy) Blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string {
	return blocked(m, c, asked, pods)
}

func (unhealthy) Allowed(p *Pool) int { return p.Budgets[karpv1.DisruptionReasonUnhealthy] }

func (unhealthy) Ended(*Machine) (string, bool) { return "it is well again", true }

// Forced reports whether the machine is deleted immediately, without room for its pods elsewhere, because its kubelet does not respond.
func Forced(m *Machine) bool {
	return m.Health != nil && m.Health.Wait <= 0 && m.Health.Forceful && m.Health.Kept == ""
}
