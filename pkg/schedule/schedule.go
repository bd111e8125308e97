// Package schedule reads the cron expressions of headroom, of budgets and of promotion windows.
package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// MaxLength is the maximum length of an expression in bytes. One that lists each minute, hour, day and month has 370.
const MaxLength = 512

// Schedule is a sequence of times. The zero Schedule is not valid.
type Schedule struct{ times cron.Schedule }

// Parse parses a cron expression of five fields, or a macro such as @daily, in a time zone. Unlike in [cron.ParseStandard], which panics for TZ=, the
// expression cannot name a time zone itself.
func Parse(text string, zone *time.Location) (Schedule, error) {
	if len(text) > MaxLength {
		return Schedule{}, fmt.Errorf("it has %d bytes, and may have %d", len(text), MaxLength)
	}
	if strings.Contains(text, "=") {
		return Schedule{}, errors.New("it may not name a time zone")
	}
	times, err := cron.ParseStandard(text)
	if err != nil {
		return Schedule{}, err
	}
	if fields, ok := times.(*cron.SpecSchedule); ok {
		fields.Location = zone
	}
	return Schedule{times}, nil
}

// Next returns the first time after another. It is zero if there is none within five years, such as for a day that no month has.
func (s Schedule) Next(after time.Time) time.Time { return s.times.Next(after) }

// Open reports whether one of the times is within a duration before now. Karpenter's budgets apply at the same times.
func (s Schedule) Open(now time.Time, duration time.Duration) bool {
	next := s.Next(now.Add(-duration))
	return !next.IsZero() && !next.After(now)
}
