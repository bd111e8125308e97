package reason

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// ExpiryLead is how long before a machine expires Karve prepares room for its pods elsewhere. It is long enough to start a machine. For machines that
	// live less than an hour, it is their lifetime divided by shortLife.
	ExpiryLead = 15 * time.Minute
	shortLife  = 4
)

// expiring is for machines that Karpenter will delete soon because they expire or because their capacity block ends, and that hold pods or headroom which need room elsewhere. Like
// Karpenter, Karve checks no budgets for them. Such a machine is only marked, and Karpenter drains it.
type expiring struct{ common }

func (expiring) Candidate(m *Machine, now time.Time) *Candidate {
	if !Expires(m, now) || len(m.Moving()) == 0 && !m.Headroom {
		return nil
	}
	return &Candidate{Reason: Expiring, Word: Expiring, Message: WhyExpires(m)}
}

func (expiring) Blocked(*Machine, *Candidate, []*corev1.Pod, Pods) string { return "" }

func (expiring) Allowed(*Pool) int { return math.MaxInt }

func (expiring) Ended(m *Machine) (string, bool) { return drifted{}.Ended(m) }

// Expires reports whether the machine expires soon, or its capacity block ends soon.
func Expires(m *Machine, now time.Time) bool {
	at, lead := Expiry(m), ExpiryLead
	if at.IsZero() {
		return false
	}
	if !blockEndsFirst(m) {
		lead = min(lead, at.Sub(m.Claim.CreationTimestamp.Time)/shortLife)
	}
	return !now.Before(at.Add(-lead))
}

// Expiry returns when Karpenter deletes the machine because it expires or because its capacity block ends, or zero if it does neither.
func Expiry(m *Machine) time.Time {
	if blockEndsFirst(m) {
		return m.Leaves
	}
	return ageLimit(m)
}

// WhyExpires returns why Karpenter deletes the machine at its [Expiry].
func WhyExpires(m *Machine) string {
	if blockEndsFirst(m) {
		return fmt.Sprintf("its capacity block %s ends soon", m.Reservation)
	}
	return "it expires soon"
}

// blockEndsFirst reports whether the capacity block of the machine ends before the machine expires.
func blockEndsFirst(m *Machine) bool {
	at := ageLimit(m)
	return !m.Leaves.IsZero() && (at.IsZero() || m.Leaves.Before(at))
}

// ageLimit returns when the machine expires according to expireAfter, or zero if it does not.
func ageLimit(m *Machine) time.Time {
	if life := m.Claim.Spec.ExpireAfter.Duration; life != nil {
		return m.Claim.CreationTimestamp.Add(*life)
	}
	return time.Time{}
}
