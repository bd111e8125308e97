package reason

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// drifted is for machines that differ from those that Karve would launch today. The word of the mark is the kind of drift, as in Karpenter.
type drifted struct{}

func (drifted) Name() karpv1.DisruptionReason { return karpv1.DisruptionReasonDrifted }

func (drifted) Candidate(m *Machine, _ time.Time) *Candidate {
	if m.Drift == nil {
		return nil
	}
	return &Candidate{Reason: karpv1.DisruptionReasonDrifted, Word: m.Drift.Reason, Message: m.Drift.Message, Eventual: true}
}

func (drifted) Blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string {
	return blocked(m, c, asked, pods)
}

func (drifted) Allowed(p *Pool) int { return p.Budgets[karpv1.DisruptionReasonDrifted] }

func (drifted) Ended(m *Machine) (string, bool) {
	if m.NodePool.Unready {
		return "its NodePool is not ready", false
	}
	return asToday, true
}
