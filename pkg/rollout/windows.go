package rollout

import (
	"fmt"
	"time"
	_ "time/tzdata" // A minimal container image has no time zone database.

	"github.com/robfig/cron/v3"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// windows are times in which images may be promoted. If there are none, images may always be promoted.
type windows []window

type window struct {
	opens cron.Schedule
	stays time.Duration
	zone  *time.Location
}

// parseWindows parses windows as Karpenter parses the schedules of budgets, but in each window's own time zone.
func parseWindows(list []v1alpha1.PromotionWindow) (windows, error) {
	var all windows
	for i, w := range list {
		zone, err := time.LoadLocation(w.TimeZone)
		if err != nil {
			return nil, fmt.Errorf("spec.windows[%d].timeZone: %w", i, err)
		}
		opens, err := cron.ParseStandard(w.Schedule)
		if err != nil {
			return nil, fmt.Errorf("spec.windows[%d].schedule: %w", i, err)
		}
		stays, err := time.ParseDuration(w.Duration)
		if err != nil {
			return nil, fmt.Errorf("spec.windows[%d].duration: %w", i, err)
		}
		if opens.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, zone)).IsZero() {
			return nil, fmt.Errorf("spec.windows[%d].schedule: %q is never", i, w.Schedule)
		}
		all = append(all, window{opens, stays, zone})
	}
	return all, nil
}

// open reports whether a window is open at a time.
func (all windows) open(now time.Time) bool {
	for _, w := range all {
		// As for Karpenter's budgets, a window is open if it opened within its duration.
		if opened := w.opens.Next(now.In(w.zone).Add(-w.stays)); !opened.IsZero() && !opened.After(now) {
			return true
		}
	}
	return len(all) == 0
}

// next returns when the next window opens after a time. It is zero if none does.
func (all windows) next(now time.Time) time.Time {
	var first time.Time
	for _, w := range all {
		if opens := w.opens.Next(now.In(w.zone)); !opens.IsZero() && (first.IsZero() || opens.Before(first)) {
			first = opens
		}
	}
	return first.UTC()
}
