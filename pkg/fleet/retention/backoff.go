package retention

import (
	"strconv"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

const (
	// firstBackoff is how long Karve waits before it tries again to replace a machine whose pods found no room. The time doubles with each failure, up to
	// maxBackoff.
	firstBackoff = 10 * time.Minute
	maxBackoff   = lifecycle.LongestBackoff
)

// Failures returns how many times in a row the pods of a machine found no room.
func Failures(m *records.Machine) int {
	n, err := strconv.Atoi(m.Claim.Annotations[v1alpha1.ReplacementFailuresAnnotation])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Backoff returns how long Karve waits before it tries again to replace a machine, after this number of failures in a row.
func Backoff(failures int) time.Duration {
	return lifecycle.Backoff(firstBackoff, maxBackoff, failures)
}

// BackoffUntil returns the time before which Karve does not try again to replace a machine. It is zero if there is no back-off. A time more than twice
// the back-off in the future comes from a clock that was ahead, and is ignored.
func BackoffUntil(m *records.Machine, now time.Time) time.Time {
	until := facts.TimeOf(m.Claim.Annotations[v1alpha1.ReplaceAfterAnnotation])
	if !now.Before(until) || until.After(now.Add(2*Backoff(Failures(m)))) {
		return time.Time{}
	}
	return until
}
