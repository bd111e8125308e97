package karpenter

import (
	"time"

	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// AllowedDisruptions returns how many of a NodePool's machines its budgets allow to be disrupted at the same time for a reason.
func AllowedDisruptions(np *karpv1.NodePool, machines int, reason karpv1.DisruptionReason, now time.Time) int {
	return np.MustGetAllowedDisruptions(stopped{now: now}, machines, reason)
}

// stopped is a clock that always shows the same time.
type stopped struct {
	clock.Clock
	now time.Time
}

func (s stopped) Now() time.Time { return s.now }
