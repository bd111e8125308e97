package node

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/nodecontract"
)

// lookForReset is how often the driver is opened again for a GPU that was reset and does not answer yet.
const lookForReset = 30 * time.Second

// resets are the GPUs that were reset according to the Node's annotation.
type resets struct {
	// begun are the GPUs in the annotation that were already handled. A new fault of one of them happened after the reset.
	begun map[string]bool
	// void are those of them that had a new fault that was reported.
	void map[string]bool
	// every is how often the driver is opened again for a GPU that does not answer yet. tried is when it was last.
	every time.Duration
	tried time.Time
	// written is the version of the Node from which GPUs were last removed.
	written string
}

func newResets() resets {
	return resets{begun: map[string]bool{}, void: map[string]bool{}, every: lookForReset}
}

// resetGPUs returns the GPUs in an annotation.
func resetGPUs(annotation string) []string {
	var uuids []string
	for uuid := range strings.SplitSeq(annotation, ",") {
		if uuid = strings.TrimSpace(uuid); uuid != "" && !slices.Contains(uuids, uuid) {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// decide marks the GPUs in the annotation as reset. done are the GPUs to remove from it. void are those of them that failed again, each of which is
// returned once. reopen reports whether the driver must be opened again to see the current state of the GPUs.
func (r *resets) decide(uuids []string, t *health.Tracker, now time.Time) (done, void []string, reopen bool) {
	r.forget(func(uuid string) bool { return !slices.Contains(uuids, uuid) })
	for _, uuid := range uuids {
		begun := r.begun[uuid]
		r.begun[uuid] = true
		switch {
		case t.Sound(uuid):
			done = append(done, uuid)
		case begun && !t.Marked(uuid):
			done = append(done, uuid)
			if !r.void[uuid] {
				r.void[uuid] = true
				void = append(void, uuid)
			}
		case !begun:
			reopen = t.MarkReset(uuid) || reopen
		case now.Sub(r.tried) >= r.every:
			reopen = true
		}
	}
	if reopen {
		r.tried = now
	}
	return done, void, reopen
}

// forget drops what is known about GPUs.
func (r *resets) forget(gone func(uuid string) bool) {
	maps.DeleteFunc(r.begun, func(uuid string, _ bool) bool { return gone(uuid) })
	maps.DeleteFunc(r.void, func(uuid string, _ bool) bool { return gone(uuid) })
}

// removeReset removes GPUs from the annotation of a version of the Node. If the Node has changed since, the write fails and is tried again.
func (a *Agent) removeReset(ctx context.Context, n nodeapi.Node, uuids, done []string) error {
	isDone := func(uuid string) bool { return slices.Contains(done, uuid) }
	var value any // The value nil removes the annotation.
	if left := slices.DeleteFunc(slices.Clone(uuids), isDone); len(left) > 0 {
		value = strings.Join(left, ",")
	}
	err := a.node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{
		"metadata": map[string]any{"resourceVersion": n.Metadata.ResourceVersion, "annotations": map[string]any{nodecontract.GPUResetAnnotation: value}},
	})
	if err == nil {
		a.resets.written = n.Metadata.ResourceVersion
		a.resets.forget(isDone) // Somebody may name them again after the next reset.
	}
	return err
}

// takeResets handles the annotation, and reports whether the driver must be opened again.
func (a *Agent) takeResets(ctx context.Context, tracker *health.Tracker) bool {
	if a.node == nil || !a.options.writeNode {
		return false
	}
	n, _ := a.latestNode.get()
	if n.Metadata.ResourceVersion == a.resets.written {
		return false // It has not been read, or its annotation is out of date.
	}
	log := logr.FromContextOrDiscard(ctx)
	now, uuids := time.Now(), resetGPUs(n.Metadata.Annotations[nodecontract.GPUResetAnnotation])
	done, void, reopen := a.resets.decide(uuids, tracker, now)
	for _, uuid := range void {
		a.report.events.tell(ctx, health.Event{Warning: true, Reason: "GPUResetFailed", Message: "GPU " + uuid + " failed again after it was reset; it stays out of service"})
	}
	if len(done) > 0 {
		if err := a.removeReset(ctx, n, uuids, done); err != nil {
			log.Info("The annotation is not removed; trying again", "annotation", nodecontract.GPUResetAnnotation, "error", err.Error())
		} else {
			log.Info("Removed from the annotation", "annotation", nodecontract.GPUResetAnnotation, "gpus", done)
		}
	}
	if reopen {
		log.Info("Somebody says that GPUs were reset; opening the driver anew")
		// Drain the events that are still queued. Those from before the reset do not count against a GPU that was reset, and those of other GPUs are not
		// lost.
		for {
			event, ok, err := a.library.Wait(0)
			if err != nil || !ok {
				break
			}
			a.report.observe(event)
			marked := tracker.Marked(event.UUID)
			a.reportChanges(ctx, tracker)(tracker.Observe(event, now))
			if marked {
				tracker.MarkReset(event.UUID)
			}
		}
	}
	return reopen
}
