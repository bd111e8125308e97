package launch

import (
	"slices"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

const (
	// blameAfter is how many launches of an instance type must fail, for no known reason and with one of another type that came through between each two,
	// before the type is set aside. With fewer, an outage that comes back once would be taken for a fault of the type.
	blameAfter = 3
	// blameWithin is how long a failure counts towards the next one: longer than the longest pause and a launch that hangs.
	blameWithin = 15 * time.Minute
)

// record is what became of the launches of one instance type of a GPUNodeClass.
type record struct {
	// launched is when a machine of the type was last launched.
	launched time.Time
	// failed is when a launch last failed for no known reason.
	failed time.Time
	// failures counts them: the first since one of the type came through, and each before which one of another type did.
	failures int
}

// judge returns what a failed launch counts against. A hang, or an error that names no offering, is no evidence against an instance type: connections that are
// closed and errors of the service look the same, and the next type would fail as well, or be bought at a higher price once the cloud is back. The launches of
// the GPUNodeClass pause instead. A type is set aside only after several of its launches failed while those of another type came through in between.
// created is when the claim was created: claims of one plan that fail together are one failure.
func (l *Ledger) judge(s Shape, reason, message string, cloud Cloud, created, now time.Time) Refusal {
	reason = known(reason)
	if (reason == v1alpha1.RefusalLaunchFailed || reason == v1alpha1.RefusalSilent) && l.blames(s, created, now) {
		reason = v1alpha1.RefusalTypeFailing
	}
	return refusalFor(s, reason, message, cloud)
}

// blames notes a failure of the shape's instance types, and says whether it is theirs.
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
			l.record(s.Class, t).failures = 0 // It takes as many again to set them aside once more.
		}
	}
	return enough
}

// othersLaunched says whether an instance type that is not of the shape was launched after a time.
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

// cameThrough notes that a machine of the type was launched at a time.
func (l *Ledger) cameThrough(class, instanceType string, at time.Time) {
	r := l.record(class, instanceType)
	if at.After(r.launched) {
		r.launched = at
	}
	if r.failed.Before(r.launched) {
		r.failures = 0
	}
}
