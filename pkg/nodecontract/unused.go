package nodecontract

import (
	"encoding/json"
	"fmt"
	"time"
)

const (
	// UnusedBeat is how often the agent confirms an UnusedReport, and how long a pod has not used a GPU before it is in one.
	UnusedBeat = 5 * time.Minute
	// UnusedFresh is how long an UnusedReport counts after the agent last looked: two beats may be missed. Afterwards nobody knows what the pods have done since.
	UnusedFresh = 2 * UnusedBeat
)

// UnusedReport says since when pods have held replicas without using a GPU. A pod that holds device memory and does not compute does not use it.
type UnusedReport struct {
	// AsOf is when the agent last looked. What it has not seen it does not claim: the times below are good until then.
	AsOf time.Time `json:"asOf"`
	// Since is by namespace/name of the pod. The agent knows pods by their names only: see For.
	Since map[string]time.Time `json:"since"`
}

// ParseUnused reads an annotation; without one the report is empty.
func ParseUnused(annotation string) (UnusedReport, error) {
	var r UnusedReport
	if annotation == "" {
		return r, nil
	}
	if err := json.Unmarshal([]byte(annotation), &r); err != nil {
		return UnusedReport{}, fmt.Errorf("reading %s: %w", UnusedSinceAnnotation, err)
	}
	return r, nil
}

// String is the annotation; "" for a report without pods.
func (r UnusedReport) String() string {
	if len(r.Since) == 0 {
		return ""
	}
	data, err := json.Marshal(r)
	if err != nil {
		return "" // A year that JSON has no words for.
	}
	return string(data)
}

// FreshAt says whether the report counts at a time.
func (r UnusedReport) FreshAt(now time.Time) bool {
	age := now.Sub(r.AsOf)
	return -UnusedFresh <= age && age <= UnusedFresh
}

// For is how long the pod is known not to have used a GPU; 0 when that is not known at now, which is so of every pod in a report that is not fresh. It
// does not grow while the agent does not look. A pod that has started later than one of its name that is in the Report counts from its start.
func (r UnusedReport) For(pod string, started, now time.Time) time.Duration {
	since, ok := r.Since[pod]
	if !ok || started.IsZero() || !r.FreshAt(now) {
		return 0
	}
	if started.After(since) {
		since = started
	}
	return max(0, r.AsOf.Sub(since))
}
