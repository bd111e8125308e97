package reason

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// unhealthy is for machines that have been unhealthy for longer than package repair tolerates. Machines whose kubelet does not respond are deleted and not
// replaced: see Forced.
type unhealthy struct{ common }

func (unhealthy) Candidate(m *Machine, _ time.Time) *Candidate {
	if m.Health == nil || m.Health.Wait > 0 || Forced(m) {
		return nil
	}
	return &Candidate{Reason: Unhealthy, Word: Unhealthy, Message: m.Health.Message, Kept: m.Health.Kept, Eventual: true, Urgent: true}
}

func (unhealthy) Ended(*Machine) (string, bool) { return "it is well again", true }

// Forced reports whether the machine is deleted immediately, without room for its pods elsewhere, because its kubelet does not respond. It uses no budget,
// because nothing shows that its pods still run. But a budget of 0 keeps a machine that is not being deleted yet.
func Forced(m *Machine) bool {
	allowed, known := m.NodePool.Budgets[karpv1.DisruptionReasonUnhealthy]
	return m.Health != nil && m.Health.Wait <= 0 && m.Health.Forceful && m.Health.Kept == "" && (m.Deleting() || !known || allowed > 0)
}
