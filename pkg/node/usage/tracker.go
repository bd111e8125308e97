// Package usage finds the pods that hold replicas of GPUs without using them.
package usage

import (
	"maps"
	"slices"
	"time"

	"karve.sh/karve/pkg/nodecontract"
)

// Tracker tracks how long pods have not used their GPUs. If in doubt, it assumes that a pod has used them.
type Tracker struct {
	last  time.Time
	holds map[string][]string
	since map[string]time.Time
	// written is the report that was written to the Node.
	written nodecontract.UnusedReport
}

// Adopt starts with the report that an earlier agent wrote to the Node. The first Look discards it if it is older than nodecontract.UnusedReportTTL.
func (t *Tracker) Adopt(r nodecontract.UnusedReport) {
	t.last, t.since, t.written = r.AsOf, maps.Clone(r.Since), r
}

// Look adds the observations of GPUs since the last look, by UUID. holds has the GPUs of which each pod (namespace/name) holds replicas, or is nil if
// that is unknown for now. A GPU that is missing in seen may have been used by all pods that hold it.
func (t *Tracker) Look(now time.Time, holds map[string][]string, seen map[string]Seen) {
	if holds == nil && t.holds == nil {
		return
	}
	if gap := now.Sub(t.last); gap < 0 || gap > nodecontract.UnusedReportTTL {
		t.since = nil // There was no look for too long, or the clock was set.
	}
	t.last = now
	if holds != nil {
		t.holds = holds
	}
	next := map[string]time.Time{}
	for pod, gpus := range t.holds {
		if len(gpus) == 0 || slices.ContainsFunc(gpus, func(uuid string) bool { return t.uses(pod, uuid, seen) }) {
			continue
		}
		next[pod] = now
		if since, ok := t.since[pod]; ok {
			next[pod] = since
		}
	}
	t.since = next
}

// uses reports whether the pod may have used the GPU.
func (t *Tracker) uses(pod, uuid string, seen map[string]Seen) bool {
	s, ok := seen[uuid]
	if !ok || s.Unsure || slices.Contains(s.Pods, pod) {
		return true
	}
	// A pod that does not hold the GPU may have used it on behalf of one that does, like an MPS server.
	return slices.ContainsFunc(s.Pods, func(user string) bool { return !slices.Contains(t.holds[user], uuid) })
}

// Report returns the report for the Node, and whether to write it now: immediately if a pod in the written report has used its GPU or is gone, and
// otherwise once per beat. Pods are only added with a beat, so that a pod that pauses from time to time does not cause a write each time.
func (t *Tracker) Report() (report nodecontract.UnusedReport, due bool) {
	report = nodecontract.UnusedReport{AsOf: t.last.UTC().Truncate(time.Second), Since: map[string]time.Time{}}
	for pod, since := range t.since {
		if t.last.Sub(since) >= nodecontract.UnusedBeat {
			// Round up to a second, so that the time is never too early.
			report.Since[pod] = since.UTC().Add(time.Second - 1).Truncate(time.Second)
		}
	}
	for pod := range t.written.Since {
		if _, still := report.Since[pod]; !still {
			return report, true
		}
	}
	age := report.AsOf.Sub(t.written.AsOf)
	return report, len(report.Since) > 0 && (age < 0 || age >= nodecontract.UnusedBeat)
}

// Written records that the report was written to the Node.
func (t *Tracker) Written(r nodecontract.UnusedReport) { t.written = r }
