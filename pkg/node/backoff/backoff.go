// Package backoff computes the pauses of loops that retry.
package backoff

import "time"

// Backoff computes pauses that double from First to Last. The zero value has those of most loops.
type Backoff struct {
	First, Last time.Duration
	next        time.Duration
}

// first and last are the defaults.
const first, last = 200 * time.Millisecond, 30 * time.Second

// Next returns the pause before the next attempt.
func (b *Backoff) Next() time.Duration {
	from, to := b.First, b.Last
	if from == 0 {
		from = first
	}
	if to == 0 {
		to = last
	}
	pause := min(max(b.next, from), to)
	b.next = 2 * pause
	return pause
}

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = 0 }
