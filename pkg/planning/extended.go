package planning

import (
	"fmt"
	"time"
)

// Extended describes a search for a plan that took longer than the usual budget, because pods of many shapes are worth more time.
type Extended struct {
	Took, Usual time.Duration
	Shapes      int
	At          time.Time
}

// String returns a sentence without a full stop.
func (e *Extended) String() string {
	return fmt.Sprintf("a plan took %s instead of %s, because its pods have %d different requests", e.Took.Round(100*time.Millisecond), e.Usual, e.Shapes)
}

// extendedFor is how long an extended search is reported.
const extendedFor = time.Hour

// extend records a search. Of the searches of the last hour, it keeps the one that took longest.
func (p *Planner) extend(e Extended) {
	if e.Took <= e.Usual {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.extended == nil || e.Took > p.extended.Took || e.At.Sub(p.extended.At) >= extendedFor {
		p.extended = &e
	}
}

// Extended returns the longest extended search of the last hour, or nil if there was none.
func (p *Planner) Extended() *Extended {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.extended == nil || p.Clock.Since(p.extended.At) >= extendedFor {
		return nil
	}
	return p.extended
}
