package retention

import (
	"strconv"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// firstBackoff is how long a machine is left alone whose pods got no new place; twice as long each time, at most longestBackoff.
	firstBackoff   = 10 * time.Minute
	longestBackoff = lifecycle.LongestBackoff
)

// Failures returns how often in a row the pods of a machine got no new place.
func Failures(m *snapshot.Machine) int {
	n, err := strconv.Atoi(m.Claim.Annotations[v1alpha1.ReplacementFailuresAnnotation])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Backoff returns how long a machine is left alone after so many failures in a row.
func Backoff(failures int) time.Duration {
	d := firstBackoff
	for range failures - 1 {
		if d *= 2; d >= longestBackoff {
			return longestBackoff
		}
	}
	return d
}

// BackoffUntil returns until when a machine is left alone, since its pods got no new place; the zero time when it is not. A time that lies more than twice as far
// ahead as it may was written by a clock that was ahead, and counts for nothing.
func BackoffUntil(m *snapshot.Machine, now time.Time) time.Time {
	until := snapshot.TimeOf(m.Claim.Annotations[v1alpha1.ReplaceAfterAnnotation])
	if !now.Before(until) || until.After(now.Add(2*Backoff(Failures(m)))) {
		return time.Time{}
	}
	return until
}
