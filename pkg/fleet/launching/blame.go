package launching

import (
	"slices"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

const (
	// blameAfter is how many launches of an instance type must fail for an unknown reason, with a successful launch of another type between each two,
	// before Karve avoids the type. With fewer, an outage that recurs once could look like a fault of the type.
	blameAfter = 3
	// blameWithin is how long a failure counts. It is longer than the longest pause and a launch that hangs.
	blameWithin = 15 * time.Minute
)

// record is the history of launches of one instance type of a GPUNodeClass.
type record struct {
	// launched is when a machine of the type was last launched.
	launched time.Time
	// failed is when a launch last failed for an unknown reason.
	failed time.Time
	// failures counts such failures: the first since the last success of the type, and each one that follows a success of another type.
	failures int
}

// Judge returns the refusal for a failed launch. A launch that hangs, or an error that names no offering, is no evidence against an instance type:
// closed connections and service errors look the same. The next type would fail as well, or be launched at a higher price once the cloud recovers. So
// such a failure pauses the launches of the GPUNodeClass instead. Karve avoids a type only after several of its launches failed while those of another
// type succeeded in between. created is when the NodeClaim was created: NodeClaims of one plan that fail together count as one failure.
func (l *Ledger) Judge(s Shape, reason, message string, cloud Cloud, created, now time.Time) Refusal {
	reason = Known(reason)
	if (reason == v1alpha1.RefusalLaunchFailed || reason == v1alpha1.RefusalSilent) && l.blames(s, created, now) {
		reason = v1alpha1.RefusalTypeFailing
	}
	return RefusalFor(s, reason, message, cloud)
}

// blames records a failure of the shape's instance types, and reports whether they are the cause.
func (l *Ledger) blames(s Shape, created, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	enough := true
	for _, t := range s.InstanceTypes {
		r := l.record(s.Class, t)
		switch {
		case r.failures == 0 || now.Sub(r.failed) > blameWithin:
			r.failures, r.failed = 1, now
		case created.After(r.failed):
			if l.othersLaunched(s, r.failed) {
				r.failures++
			}
			r.failed = now
		}
		enough = enough && r.failures >= blameAfter
	}
	if enough {
		for _, t := range s.InstanceTypes {
			l.record(s.Class, t).failures = 0 // Karve avoids them again only after as many new failures.
		}
	}
	return enough
}

// othersLaunched reports whether an instance type that is not in the shape was launched after a time.
func (l *Ledger) othersLaunched(s Shape, after time.Time) bool {
	for t, r := range l.records[s.Class] {
		if r.launched.After(after) && !slices.Contains(s.InstanceTypes, t) {
			return true
		}
	}
	return false
}

func (l *Ledger) record(class, instanceType string) *record {
	if l.records[class] == nil {
		l.records[class] = map[string]*record{}
	}
	if l.records[class][instanceType] == nil {
		l.records[class][instanceType] = &record{}
	}
	return l.records[class][instanceType]
}

// cameThrough records that a machine of the type was launched at a time.
func (l *Ledger) cameThrough(class, instanceType string, at time.Time) {
	r := l.record(class, instanceType)
	if at.After(r.launched) {
		r.launched = at
	}
	if r.failed.Before(r.launched) {
		r.failures = 0
	}
}
