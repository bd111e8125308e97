package reason

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const (
	// ExpiryLead is how long before a machine expires its pods need another place: long enough for one to start, and at most a part of the machine's life
	// (one in shortLife), for machines that live for less than an hour.
	ExpiryLead = 15 * time.Minute
	shortLife  = 4
)

// expiring is for machines that Karpenter is about to delete because their time is over, and that hold something which needs another place before: pods, or
// headroom. Karpenter asks no budgets, so neither is asked here. Such a machine is only marked: Karpenter drains it.
type expiring struct{}

func (expiring) Name() karpv1.DisruptionReason { return Expiring }

func (expiring) Candidate(m *Machine, now time.Time) *Candidate {
	if !Expires(m, now) || len(m.Moving()) == 0 && !m.Headroom {
		return nil
	}
	return &Candidate{Reason: Expiring, Word: Expiring, Message: "it expires soon"}
}

func (expiring) Blocked(*Machine, *Candidate, []*corev1.Pod, Pods) string { return "" }

func (expiring) Allowed(*Pool) int { return math.MaxInt }

func (expiring) Ended(m *Machine) (string, bool) { return drifted{}.Ended(m) }

// Expires reports whether Karpenter will delete the machine soon because its time is over.
func Expires(m *Machine, now time.Time) bool {
	life := m.Claim.Spec.ExpireAfter.Duration
	return life != nil && !now.Before(m.Claim.CreationTimestamp.Add(*life-min(ExpiryLead, *life/shortLife)))
}
