// Package pace bounds how much of a processor core a controller uses that looks at the whole fleet after each event.
package pace

import "time"

// share is how many times as long as its last pass took a controller waits before the next one. So passes take at most a tenth of a core.
const share = 9

// Pace tells a controller when its next pass is due. The zero value is for a controller without a pass so far.
type Pace struct{ due time.Time }

// Wait returns how long to wait for the next pass, and 0 or less if it is due.
func (p *Pace) Wait(now time.Time) time.Duration { return p.due.Sub(now) }

// Passed records a pass. The next one is due after its end, no earlier than least and no later than most.
func (p *Pace) Passed(from, to time.Time, least, most time.Duration) {
	p.due = to.Add(min(max(least, share*to.Sub(from)), most))
}
