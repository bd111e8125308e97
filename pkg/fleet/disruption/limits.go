package disruption

import (
	"sync/atomic"
	"time"

	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot/records"
)

// Limits bound the work of a round. With the zero value, only the effort bounds it, and a round is a function of its other arguments.
type Limits struct {
	// Timer starts a timer and returns a function that reports whether it is over. Both may be called concurrently. It may be nil.
	Timer func(time.Duration) (over func() bool)
	// Urgent reports whether there is more urgent work than a search for a cheaper layout. It may be called concurrently, and it may be nil.
	Urgent func() bool
	// Visit is called with each machine before a decision about it. It may be nil.
	Visit func(*records.Machine)
	// Effort is the effort of a search for a cheaper layout, or 0 for the default.
	Effort int64
}

func (l Limits) timer(d time.Duration) func() bool {
	if l.Timer == nil {
		return func() bool { return false }
	}
	return l.Timer(d)
}

func (l Limits) urgent() bool { return l.Urgent != nil && l.Urgent() }

func (l Limits) visit(m *records.Machine) {
	if l.Visit != nil {
		l.Visit(m)
	}
}

// interruptible is a search that ends when its time is up or when there is more urgent work.
type interruptible struct {
	limits     Limits
	cut, yield atomic.Bool
}

// within starts a timer and returns a function that reports whether the search must end. The function may be called concurrently.
func (x *interruptible) within(limit time.Duration) func() bool {
	over := x.limits.timer(limit)
	return func() bool {
		if x.limits.urgent() {
			x.yield.Store(true)
		}
		ends := x.yield.Load() || over()
		if ends {
			x.cut.Store(true)
		}
		return ends
	}
}

func (x *interruptible) solver(stop func() bool) solve.Solver {
	return solve.Solver{Effort: x.limits.Effort, Stop: stop}
}
