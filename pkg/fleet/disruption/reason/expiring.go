package reason

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const (
	// ExpiryLead is how long before a machine expires Karve prepares room for its pods elsewhere. It is long enough to start a machine. For machines that
	// live less than an hour, it is their lifetime divided by shortLife.
	ExpiryLead = 15 * time.Minute
	shortLife  = 4
)

// expiring is for machines that Karpenter will delete soon because they expire, and that hold pods or headroom which need room elsewhere. Like
// Karpenter, Karve checks no budgets for them. Such a machine is only marked, and Karpenter drains it.
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

// Expires reports whether the machine expires soon.
func Expires(m *Machine, now time.Time) bool {
	life := m.Claim.Spec.ExpireAfter.Duration
	return life != nil && !now.Before(m.Claim.CreationTimestamp.Add(*life-min(ExpiryLead, *life/shortLife)))
}
