// Package backoff computes the pauses of loops that retry.
package backoff

import (
	"cmp"
	"time"
)

// Backoff computes pauses that double from First to Last. The zero value has those of most loops.
type Backoff struct {
	First, Last time.Duration
	next        time.Duration
}

// first and last are the defaults.
const first, last = 200 * time.Millisecond, 30 * time.Second

// Next returns the pause before the next attempt.
func (b *Backoff) Next() time.Duration {
	pause := min(max(b.next, cmp.Or(b.First, first)), cmp.Or(b.Last, last))
	b.next = 2 * pause
	return pause
}

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = 0 }
