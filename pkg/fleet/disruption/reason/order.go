package reason

import (
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// replacing has the reasons to replace machines, by priority.
var replacing = []Reason{unhealthy{common{Unhealthy}}, ofDrift, underutilized{common{karpv1.DisruptionReasonUnderutilized}}}

// others has the reasons that have their own steps.
var others = []Reason{empty{common{karpv1.DisruptionReasonEmpty}}, expiring{common{Expiring}}}

var ofDrift = drifted{common{karpv1.DisruptionReasonDrifted}}

// First returns the candidate of the first reason to replace a machine, or nil if there is none. It prefers a candidate without Kept.
func First(m *Machine, now time.Time) *Candidate {
	var kept *Candidate
	for _, r := range replacing {
		switch c := r.Candidate(m, now); {
		case c == nil:
		case c.Kept == "":
			return c
		case kept == nil:
			kept = c
		}
	}
	return kept
}

// Of returns the reason for a name or for the word of a mark. Other words are kinds of drift.
func Of[T ~string](word T) Reason {
	for _, r := range slices.Concat(replacing, others) {
		if r.Name() == karpv1.DisruptionReason(word) {
			return r
		}
	}
	return ofDrift
}
