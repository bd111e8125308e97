package v1alpha1

import (
	"fmt"
	"time"
)

// DefaultUnusedAfter is the unusedAfter that the API server sets by default. UnusedDuration reads an empty value as this default.
const DefaultUnusedAfter = "1h"

// UnusedDuration returns how long the pods of a node may leave its GPUs unused before Karve reports it. If never is true, Karve does not report it.
func (c Consolidation) UnusedDuration() (d time.Duration, never bool, err error) {
	return durationOr("unusedAfter", c.UnusedAfter, DefaultUnusedAfter, "; use Never to report nothing")
}

// The bounds of EvictWhenUnusedAnnotation. If an agent has just died, nobody knows what its pods did in the last ten minutes.
const (
	LeastEvictWhenUnused = 10 * time.Minute
	MostEvictWhenUnused  = 720 * time.Hour
)

// EvictWhenUnused returns how long a pod may leave its GPU unused before it is evicted, according to its annotations. It returns false for ok if there
// is no such annotation. It returns an error if the value is not a duration or out of bounds; the pod must then not be evicted.
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
