package effort

import (
	"sync"
	"sync/atomic"
)

// Budget is what a search may still spend, in steps of its loops.
type Budget struct {
	Most  int64
	Left  int64
	clock *clock
	over  bool
	// Void is set once nothing that the search finds matters any more.
	Void atomic.Bool
}

// clock ends searches from outside. Several may ask at once.
type clock struct {
	ask  sync.Mutex
	stop func() bool
}

// Default is some 200 ms of search on two cores for a thousand pods in twenty shapes.
const Default = 700_000

// New is so many steps, defaultEffort where steps is 0. It ends early once stop, when not nil, says so.
func New(steps int64, stop func() bool) *Budget {
	if steps == 0 {
		steps = Default
	}
	return &Budget{Most: steps, Left: steps, clock: &clock{stop: stop}}
}

// shapesPerEffort is the number of shapes that an effort is meant for: more of them get more of it, in proportion, up to maxShare times.
const (
	shapesPerEffort = 20
	maxShare        = 4
)

// ForShapes makes the effort one for so many shapes.
func (e *Budget) ForShapes(shapes int) {
	part := int64(min(max(shapes, shapesPerEffort), maxShare*shapesPerEffort))
	if e.Left > 0 && e.Left < 1<<40 {
		e.Left = e.Left * part / shapesPerEffort
	}
}

// Again is as much as there was at first.
func (e *Budget) Again() *Budget { return &Budget{Most: e.Most, Left: e.Most, clock: e.clock} }

// Fork is what is left, for one of two searches that go on at the same time.
func (e *Budget) Fork() *Budget { return &Budget{Most: e.Most, Left: e.Left, clock: e.clock} }

// Join goes on from where the longer one of two searches ended. It is over when one of them is.
func (e *Budget) Join(a, b *Budget) { e.Left, e.over = min(a.Left, b.Left), a.over || b.over }

// Spend takes steps and reports whether any are left.
func (e *Budget) Spend(steps int64) bool {
	e.Left -= steps
	return !e.Done()
}

// Done reports whether the search is to end. Once it is, it stays so.
func (e *Budget) Done() bool {
	e.over = e.over || e.Left <= 0 || e.Stopped()
	return e.over
}

// Stopped reports whether something else than the effort ends the search.
func (e *Budget) Stopped() bool { return e.Void.Load() || e.clock.stopped() }

func (c *clock) stopped() bool {
	if c.stop == nil {
		return false
	}
	c.ask.Lock()
	defer c.ask.Unlock()
	return c.stop()
}

// Part is a part of an effort.
func (e *Budget) Part(of int64) *Budget {
	n := max(1, e.Most/of)
	return &Budget{Most: n, Left: n, clock: e.clock}
}
