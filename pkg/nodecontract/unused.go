package nodecontract

import (
	"encoding/json"
	"fmt"
	"time"
)

const (
	// UnusedBeat is the interval at which the agent confirms an UnusedReport, and the time for which a pod must not have used a GPU before it is reported.
	UnusedBeat = 5 * time.Minute
	// UnusedReportTTL is how long an UnusedReport is valid after the agent last looked. It allows for two missed beats.
	UnusedReportTTL = 2 * UnusedBeat
)

// UnusedReport has the times since which pods have held replicas without using a GPU. A pod that holds device memory but does not compute counts as not
// using it.
type UnusedReport struct {
	// AsOf is when the agent last looked. The times in Since are valid until then.
	AsOf time.Time `json:"asOf"`
	// Since is keyed by the namespace/name of the pod. The agent knows pods only by name: see For.
	Since map[string]time.Time `json:"since"`
}

// ParseUnused parses the value of the annotation. The report of an empty value is empty.
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

// String returns the value of the annotation, or "" if the report has no pods.
func (r UnusedReport) String() string {
	if len(r.Since) == 0 {
		return ""
	}
	data, err := json.Marshal(r)
	if err != nil {
		return "" // JSON cannot represent the year.
	}
	return string(data)
}

// FreshAt reports whether the report is valid at the time now.
func (r UnusedReport) FreshAt(now time.Time) bool {
	age := now.Sub(r.AsOf)
	return -UnusedReportTTL <= age && age <= UnusedReportTTL
}

// For returns how long the pod is known not to have used a GPU. It is 0 if that is unknown, for example because the report is not fresh. It does not
// grow while the agent does not look. If the pod started after a pod with the same name was reported, it counts from the start of the pod.
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
