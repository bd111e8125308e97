package v1alpha1

import (
	"fmt"
	"time"
)

// UnusedNever is the value of Consolidation.UnusedAfter that has nothing reported.
const UnusedNever = "Never"

// DefaultUnusedAfter is the value that the API server writes where unusedAfter is left out; UnusedDuration reads an empty value as it.
const DefaultUnusedAfter = "1h"

// UnusedDuration is how long the pods of a machine have not used its GPUs before that is reported; never says that it is not.
func (c Consolidation) UnusedDuration() (d time.Duration, never bool, err error) {
	unusedAfter := c.UnusedAfter
	switch unusedAfter {
	case UnusedNever:
		return 0, true, nil
	case "":
		unusedAfter = DefaultUnusedAfter
	}
	d, err = time.ParseDuration(unusedAfter)
	if err != nil {
		return 0, false, fmt.Errorf("reading unusedAfter: %w", err)
	}
	if d < 0 {
		return 0, false, fmt.Errorf("reading unusedAfter: %q is negative; use Never to report nothing", unusedAfter)
	}
	return d, false, nil
}

// The bounds of EvictWhenUnusedAnnotation. Nobody knows what a pod did in the last ten minutes if its agent has just died.
const (
	LeastEvictWhenUnused = 10 * time.Minute
	MostEvictWhenUnused  = 720 * time.Hour
)

// EvictWhenUnused reads what a pod's annotations say of evicting it; ok is false where they say nothing. A value that is no time or out of bounds is an error: the
// pod is not to be evicted.
func EvictWhenUnused(annotations map[string]string) (after time.Duration, ok bool, err error) {
	value, ok := annotations[EvictWhenUnusedAnnotation]
	if !ok {
		return 0, false, nil
	}
	after, err = time.ParseDuration(value)
	if err != nil || after < LeastEvictWhenUnused || after > MostEvictWhenUnused {
		return 0, true, fmt.Errorf("%s is %.64q, and must be a time such as 30m or 2h, from 10m to 720h", EvictWhenUnusedAnnotation, value)
	}
	return after, true, nil
}
