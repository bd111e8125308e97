package rollout

import (
	"fmt"
	"slices"
	"time"
	_ "time/tzdata" // A minimal container image has no time zone database.

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/schedule"
)

// windows are times in which images may be promoted. If there are none, images may always be promoted.
type windows []window

type window struct {
	opens schedule.Schedule
	stays time.Duration
}

// parseWindows parses windows as Karpenter parses the schedules of budgets, but in each window's own time zone.
func parseWindows(list []v1alpha1.PromotionWindow) (windows, error) {
	var all windows
	for i, w := range list {
		zone, err := time.LoadLocation(w.TimeZone)
		if err != nil {
			return nil, fmt.Errorf("spec.windows[%d].timeZone: %w", i, err)
		}
		opens, err := schedule.Parse(w.Schedule, zone)
		if err != nil {
			return nil, fmt.Errorf("spec.windows[%d].schedule: %w", i, err)
		}
		stays, err := time.ParseDuration(w.Duration)
		if err != nil {
			return nil, fmt.Errorf("spec.windows[%d].duration: %w", i, err)
		}
		if opens.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
			return nil, fmt.Errorf("spec.windows[%d].schedule: %q is never", i, w.Schedule)
		}
		all = append(all, window{opens, stays})
	}
	return all, nil
}

func (all windows) open(now time.Time) bool {
	return len(all) == 0 || slices.ContainsFunc(all, func(w window) bool { return w.opens.Open(now, w.stays) })
}

// next returns when the next window opens after a time. It is zero if none does.
func (all windows) next(now time.Time) time.Time {
	var first time.Time
	for _, w := range all {
		if opens := w.opens.Next(now); !opens.IsZero() && (first.IsZero() || opens.Before(first)) {
			first = opens
		}
	}
	return first.UTC()
}
