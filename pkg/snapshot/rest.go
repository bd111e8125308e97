package snapshot

import (
	"strconv"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
)

const (
	// firstRest is how long a machine is left alone whose pods got no new place; twice as long each time, at most longestRest.
	firstRest   = 10 * time.Minute
	longestRest = lifecycle.LongestRest
)

// Failures is how often in a row the machine's pods got no new place.
func (m *Machine) Failures() int {
	n, err := strconv.Atoi(m.Claim.Annotations[v1alpha1.ReplacementFailuresAnnotation])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// RestAfter is how long a machine is left alone after so many failures in a row.
func RestAfter(failures int) time.Duration {
	d := firstRest
	for range failures - 1 {
		if d *= 2; d >= longestRest {
			return longestRest
		}
	}
	return d
}

// RestsUntil is until when the machine is left alone, since no new place came for its pods; the zero time when it is not. What lies twice as far ahead as it may
// was written by a clock that was ahead, and counts for nothing.
func (m *Machine) RestsUntil(now time.Time) time.Time {
	until := timeOf(m.Claim.Annotations[v1alpha1.ReplaceAfterAnnotation])
	if !now.Before(until) || until.After(now.Add(2*RestAfter(m.Failures()))) {
		return time.Time{}
	}
	return until
}
