package reason

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// drifted is for machines that differ from those that Karve would launch today. The word of the mark is the kind of drift, as in Karpenter.
type drifted struct{ common }

func (drifted) Candidate(m *Machine, _ time.Time) *Candidate {
	if m.Drift == nil {
		return nil
	}
	return &Candidate{Reason: karpv1.DisruptionReasonDrifted, Word: m.Drift.Reason, Message: m.Drift.Message, Eventual: true}
}

func (drifted) Ended(m *Machine) (string, bool) {
	if m.NodePool.Unready {
		return "its NodePool is not ready", false
	}
	return asToday, true
}
