package node

import (
	"context"
	"slices"
	"strings"
	"sync"
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
	mu sync.Mutex
	// uuids are the GPUs in the annotation, as of version.
	uuids   []string
	version string
	// begun are the GPUs in the annotation that were already handled. A new fault of one of them happened after the reset.
	begun map[string]bool
	// void are those of them that had a new fault that was reported.
	void  map[string]bool
	tried time.Time
}

// seen records the metadata of the Node. It is called whenever the Node changes.
func (r *resets) seen(m nodeapi.Metadata) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uuids, r.version = nil, m.ResourceVersion
	for uuid := range strings.SplitSeq(m.Annotations[nodecontract.GPUResetAnnotation], ",") {
		if uuid = strings.TrimSpace(uuid); uuid != "" && !slices.Contains(r.uuids, uuid) {
			r.uuids = append(r.uuids, uuid)
		}
	}
	for uuid := range r.begun {
		if !slices.Contains(r.uuids, uuid) {
			delete(r.begun, uuid)
			delete(r.void, uuid)
		}
	}
}

// decide marks GPUs as reset. done are the GPUs to remove from the annotation. void are those of them that failed again, each of which is returned once.
// reopen reports whether the driver must be opened again to see the current state of the GPUs.
func (r *resets) decide(t *health.Tracker, now time.Time) (done, void []string, reopen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == nil {
		r.begun, r.void = map[string]bool{}, map[string]bool{}
	}
	for _, uuid := range r.uuids {
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
		case now.Sub(r.tried) >= lookForReset:
			reopen = true
		}
	}
	if reopen {
		r.tried = now
	}
	return done, void, reopen
}

// remove removes GPUs from the annotation. If the Node was changed in the meantime, the write fails and is tried again.
func (r *resets) remove(ctx context.Context, node *nodeapi.Client, done []string) error {
	r.mu.Lock()
	version := r.version
	var left []string
	for _, uuid := range r.uuids {
		if !slices.Contains(done, uuid) {
			left = append(left, uuid)
		}
	}
	r.mu.Unlock()
	var value any // The value nil removes the annotation.
	if len(left) > 0 {
		value = strings.Join(left, ",")
	}
	err := node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{
		"metadata": map[string]any{"resourceVersion": version, "annotations": map[string]any{nodecontract.GPUResetAnnotation: value}},
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.version == version {
		r.uuids = left
	}
	return err
}

// takeResets handles the annotation, and reports whether the driver must be opened again.
func (a *Agent) takeResets(ctx context.Context, tracker *health.Tracker) bool {
	if a.node == nil || !a.options.writeNode {
		return false
	}
	log := logr.FromContextOrDiscard(ctx)
	now := time.Now()
	done, void, reopen := a.resets.decide(tracker, now)
	for _, uuid := range void {
		a.report.events.tell(ctx, health.Event{Warning: true, Reason: "GPUResetFailed", Message: "GPU " + uuid + " failed again after it was reset; it stays out of service"})
	}
	if len(done) > 0 {
		if err := a.resets.remove(ctx, a.node, done); err != nil {
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
			a.changed(ctx, tracker)(tracker.Observe(event, now))
			if marked {
				tracker.MarkReset(event.UUID)
			}
		}
	}
	return reopen
}
