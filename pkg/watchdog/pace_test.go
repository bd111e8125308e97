package watchdog_test

import (
	"testing"
	"time"

	"karve.sh/karve/pkg/watchdog"
)

func TestPassesUseAtMostTenthOfCore(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name             string
		least            time.Duration
		took, since, due time.Duration
	}{
		{"a pass without cost", 0, 0, 0, 0},
		{"a short pass", 0, 20 * time.Millisecond, 0, 180 * time.Millisecond},
		{"part of the rest has passed", 0, 20 * time.Millisecond, 100 * time.Millisecond, 80 * time.Millisecond},
		{"the whole rest has passed", 0, 20 * time.Millisecond, time.Second, -820 * time.Millisecond},
		{"a short pass with a minimum rest", 500 * time.Millisecond, 20 * time.Millisecond, 0, 500 * time.Millisecond},
		{"a long pass", 0, time.Second, 0, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := watchdog.Pace{}
			if wait := p.Wait(start); wait > 0 {
				t.Errorf("wait %s before the first pass", wait)
			}
			end := start.Add(test.took)
			p.Passed(start, end, test.least, 2*time.Second)
			if wait := p.Wait(end.Add(test.since)); wait != test.due {
				t.Errorf("wait %s, want %s", wait, test.due)
			}
		})
	}
}
