package effort

import (
	"sync"
	"sync/atomic"
)

// Budget is the number of steps that a search may still spend.
type Budget struct {
	Most  int64
	Left  int64
	clock *clock
	over  bool
	// scaled reports whether Left is for the number of shapes.
	scaled bool
	// Void is set once the results of the search are no longer needed.
	Void atomic.Bool
}

// clock ends searches from outside. Several searches may share it.
type clock struct {
	ask  sync.Mutex
	stop func() bool
}

// Default is about 200 ms of search on two cores for a thousand pods in twenty shapes.
const Default = 700_000

// New returns a budget of a number of steps, or of Default if steps is 0. If stop is not nil, the budget ends early once it returns true.
func New(steps int64, stop func() bool) *Budget {
	if steps == 0 {
		steps = Default
	}
	return &Budget{Most: steps, Left: steps, clock: &clock{stop: stop}}
}

// shapesPerEffort is the number of shapes for which an effort is meant. More shapes get proportionally more, up to maxShare times as much.
const (
	shapesPerEffort = 20
	maxShare        = 15
)

// ForShapes scales the budget for a number of shapes, unless it is scaled already.
func (e *Budget) ForShapes(shapes int) {
	part := int64(min(max(shapes, shapesPerEffort), maxShare*shapesPerEffort))
	if e.Left > 0 && e.Left < 1<<40 && !e.scaled {
		e.Left = e.Left * part / shapesPerEffort
	}
	e.scaled = true
}

// Again returns a budget of the original size.
func (e *Budget) Again() *Budget { return &Budget{Most: e.Most, Left: e.Most, clock: e.clock} }

// Fork returns a budget with the remaining steps, for one of two parallel searches.
func (e *Budget) Fork() *Budget { return &Budget{Most: e.Most, Left: e.Left, clock: e.clock} }

// Of returns a budget of a number of steps, for a part of a search.
func (e *Budget) Of(steps int64) *Budget { return &Budget{Most: steps, Left: steps, clock: e.clock} }

// Join sets the budget to the remaining steps of the longer of two parallel searches. It has ended if either has.
func (e *Budget) Join(a, b *Budget) { e.Left, e.over = min(a.Left, b.Left), a.over || b.over }

// Spend subtracts steps and reports whether any are left.
func (e *Budget) Spend(steps int64) bool {
	e.Left -= steps
	return !e.Done()
}

// Done reports whether the search has to end. Once true, it stays true.
func (e *Budget) Done() bool {
	e.over = e.over || e.Left <= 0 || e.Stopped()
	return e.over
}

// Stopped reports whether something other than the number of steps ends the search.
func (e *Budget) Stopped() bool { return e.Void.Load() || e.clock.stopped() }

func (c *clock) stopped() bool {
	if c.stop == nil {
		return false
	}
	c.ask.Lock()
	defer c.ask.Unlock()
	return c.stop()
}

// Part returns a budget of 1/of of the original size.
func (e *Budget) Part(of int64) *Budget {
	n := max(1, e.Most/of)
	return &Budget{Most: n, Left: n, clock: e.clock}
}
