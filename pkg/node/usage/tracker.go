// Package usage finds the pods that hold replicas of GPUs and do not use them.
package usage

import (
	"maps"
	"slices"
	"time"

	"karve.sh/karve/pkg/nodecontract"
)

// Tracker knows since when pods have not used their GPUs. When in doubt a pod has used them.
type Tracker struct {
	last  time.Time
	holds map[string][]string
	since map[string]time.Time
	// written is what the Node says.
	written nodecontract.UnusedReport
}

// Adopt begins with what an earlier agent wrote to the Node. If that is older than unused.Fresh the first look forgets it.
func (t *Tracker) Adopt(r nodecontract.UnusedReport) {
	t.last, t.since, t.written = r.AsOf, maps.Clone(r.Since), r
}

// Look takes what was seen of the GPUs, by UUID, since the last look, and which of them each pod (namespace/name) holds replicas of; nil when that cannot be
// told at present. A GPU of which nothing was seen may have been used by all who hold it.
func (t *Tracker) Look(now time.Time, holds map[string][]string, seen map[string]Seen) {
	if holds == nil && t.holds == nil {
		return
	}
	if gap := now.Sub(t.last); gap < 0 || gap > nodecontract.UnusedFresh {
		t.since = nil // Nobody looked, or the clock was set.
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

// uses says whether the pod may have used the GPU.
func (t *Tracker) uses(pod, uuid string, seen map[string]Seen) bool {
	s, ok := seen[uuid]
	if !ok || s.Unsure || slices.Contains(s.Pods, pod) {
		return true
	}
	// Somebody who holds nothing of it may have used it for one who does, as a server of MPS.
	return slices.ContainsFunc(s.Pods, func(user string) bool { return !slices.Contains(t.holds[user], uuid) })
}

// Report is what the Node should say, and whether it is time to write it: at once when a pod in it has used its GPU or is gone, and with each beat. Pods come in
// with a beat, so that one that pauses now and then does not have the Node written all the time.
func (t *Tracker) Report() (report nodecontract.UnusedReport, due bool) {
	report = nodecontract.UnusedReport{AsOf: t.last.UTC().Truncate(time.Second), Since: map[string]time.Time{}}
	for pod, since := range t.since {
		if t.last.Sub(since) >= nodecontract.UnusedBeat {
			// A second later at most, and never earlier.
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

// Written notes that the Node says so now.
func (t *Tracker) Written(r nodecontract.UnusedReport) { t.written = r }
