package rollout

import (
	"fmt"
	"time"
	_ "time/tzdata" // A minimal container image has no time zones of its own.

	"github.com/robfig/cron/v3"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// windows are times in which images may be promoted; none means always.
type windows []window

type window struct {
	opens cron.Schedule
	stays time.Duration
	zone  *time.Location
}

// parseWindows reads windows as Karpenter reads the schedules of budgets, but for the time zone, which is the window's own.
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

// open says whether a window is open at a time.
func (all windows) open(now time.Time) bool {
	for _, w := range all {
		// As Karpenter's budgets: it has opened within the time that it stays open.
		if opened := w.opens.Next(now.In(w.zone).Add(-w.stays)); !opened.IsZero() && !opened.After(now) {
			return true
		}
	}
	return len(all) == 0
}

// next is when a window opens after a time; zero when none does.
func (all windows) next(now time.Time) time.Time {
	var first time.Time
	for _, w := range all {
		if opens := w.opens.Next(now.In(w.zone)); !opens.IsZero() && (first.IsZero() || opens.Before(first)) {
			first = opens
		}
	}
	return first.UTC()
}
