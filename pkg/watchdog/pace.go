package watchdog

import "time"

// rest is how many times the duration of its last pass a controller waits before the next one. So passes take at most a tenth of a core.
const rest = 9

// Pace bounds the CPU use of a controller that examines the whole fleet after each event. The zero value is for a controller without a pass so far.
type Pace struct{ due time.Time }

// Wait returns how long to wait for the next pass, or 0 or less if it is due.
func (p *Pace) Wait(now time.Time) time.Duration { return p.due.Sub(now) }

// Passed records a pass. The next one is due after its end, no earlier than minRest and no later than maxRest.
func (p *Pace) Passed(from, to time.Time, minRest, maxRest time.Duration) {
	p.due = to.Add(min(max(minRest, rest*to.Sub(from)), maxRest))
}
