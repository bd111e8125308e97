// Package unused is what the agent on a machine says of pods that hold replicas of its GPUs and do not use them, and what can be concluded from it.
package unused

import (
	"encoding/json"
	"fmt"
	"time"
)

// Annotation is where the agent writes its Report on the Node.
const Annotation = "karve.sh/unused-since"

const (
	// Beat is how often the agent confirms a Report, and how long a pod has not used a GPU before it is in one.
	Beat = 5 * time.Minute
	// Fresh is how long a Report counts after the agent last looked: two beats may be missed. Afterwards nobody knows what the pods have done since.
	Fresh = 2 * Beat
)

// Report says since when pods have held replicas without using a GPU. A pod that holds device memory and does not compute does not use it.
type Report struct {
	// AsOf is when the agent last looked. What it has not seen it does not claim: the times below are good until then.
	AsOf time.Time `json:"asOf"`
	// Since is by namespace/name of the pod. The agent knows pods by their names only: see For.
	Since map[string]time.Time `json:"since"`
}

// Parse reads an annotation; without one the Report is empty.
func Parse(annotation string) (Report, error) {
	var r Report
	if annotation == "" {
		return r, nil
	}
	if err := json.Unmarshal([]byte(annotation), &r); err != nil {
		return Report{}, fmt.Errorf("reading %s: %w", Annotation, err)
	}
	return r, nil
}

// String is the annotation; "" for a Report without pods.
func (r Report) String() string {
	if len(r.Since) == 0 {
		return ""
	}
	data, err := json.Marshal(r)
	if err != nil {
		return "" // A year that JSON has no words for.
	}
	return string(data)
}

// FreshAt says whether the Report counts at a time.
func (r Report) FreshAt(now time.Time) bool {
	age := now.Sub(r.AsOf)
	return -Fresh <= age && age <= Fresh
}

// For is how long the pod is known not to have used a GPU; 0 when that is not known at now, which is so of every pod in a Report that is not fresh. It
// does not grow while the agent does not look. A pod that has started later than one of its name that is in the Report counts from its start.
func (r Report) For(pod string, started, now time.Time) time.Duration {
	since, ok := r.Since[pod]
	if !ok || started.IsZero() || !r.FreshAt(now) {
		return 0
	}
	if started.After(since) {
		since = started
	}
	return max(0, r.AsOf.Sub(since))
}
