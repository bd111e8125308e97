package planner

import "sync"

// effort is what a search may still spend, in steps of its loops.
type effort struct {
	most int64
	left int64
	stop func() bool
	over bool
	ask  sync.Mutex
}

func (s Search) effort() *effort {
	e := &effort{left: s.Effort, stop: s.Stop}
	if s.Effort == 0 {
		e.left = DefaultEffort
	}
	e.most = e.left
	return e
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
func (e *effort) again() *effort { return &effort{most: e.most, left: e.most, stop: e.stop} }

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

// stopped reports whether a clock ends the search. Several may ask at once.
func (e *effort) stopped() bool {
	if e.stop == nil {
		return false
	}
	e.ask.Lock()
	defer e.ask.Unlock()
	return e.stop()
}
