package planner

import (
	"sync"
	"sync/atomic"
)

// effort is what a search may still spend, in steps of its loops.
type effort struct {
	most  int64
	left  int64
	clock *clock
	over  bool
	// void is set once nothing that the search finds matters any more.
	void atomic.Bool
}

// clock ends searches from outside. Several may ask at once.
type clock struct {
	ask  sync.Mutex
	stop func() bool
}

// defaultEffort is some 200 ms of search on two cores for a thousand pods in twenty shapes.
const defaultEffort = 700_000

// newEffort is so many steps, defaultEffort where steps is 0. It ends early once stop, when not nil, says so.
func newEffort(steps int64, stop func() bool) *effort {
	if steps == 0 {
		steps = defaultEffort
	}
	return &effort{most: steps, left: steps, clock: &clock{stop: stop}}
}

// shapesPerEffort is the number of shapes that an effort is meant for: more of them get more of it, in proportion, up to maxShare times.
const (
	shapesPerEffort = 20
	maxShare        = 4
)

// share makes the effort one for so many shapes.
func (e *effort) share(shapes int) {
	part := int64(min(max(shapes, shapesPerEffort), maxShare*shapesPerEffort))
	if e.left > 0 && e.left < 1<<40 {
		e.left = e.left * part / shapesPerEffort
	}
}

// again is as much as there was at first.
func (e *effort) again() *effort { return &effort{most: e.most, left: e.most, clock: e.clock} }

// apart is what is left, for one of two searches that go on at the same time.
func (e *effort) apart() *effort { return &effort{most: e.most, left: e.left, clock: e.clock} }

// join goes on from where the longer one of two searches ended. It is over when one of them is.
func (e *effort) join(a, b *effort) { e.left, e.over = min(a.left, b.left), a.over || b.over }

// spend takes steps and reports whether any are left.
func (e *effort) spend(steps int64) bool {
	e.left -= steps
	return !e.done()
}

// done reports whether the search is to end. Once it is, it stays so.
func (e *effort) done() bool {
	e.over = e.over || e.left <= 0 || e.stopped()
	return e.over
}

// stopped reports whether something else than the effort ends the search.
func (e *effort) stopped() bool { return e.void.Load() || e.clock.stopped() }

func (c *clock) stopped() bool {
	if c.stop == nil {
		return false
	}
	c.ask.Lock()
	defer c.ask.Unlock()
	return c.stop()
}

// part is a part of an effort.
func (e *effort) part(of int64) *effort {
	n := max(1, e.most/of)
	return &effort{most: n, left: n, clock: e.clock}
}
