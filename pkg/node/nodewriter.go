package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/backoff"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
)

const (
	// restoreAfter is how long a difference between the Node and what was written must last before it counts, because the watch lags behind the writes.
	restoreAfter = time.Second
	// restoreEvery is the shortest interval between restores, so that two writers of the same label do not overload the API server.
	restoreEvery = time.Minute
)

// written holds what was written to the Node.
type written struct {
	labels     map[string]string
	conditions map[string]health.Condition
}

// writeNode writes labels and conditions whenever they change. It writes them again if someone else changed or recreated the Node.
func (r *report) writeNode(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	w := written{labels: map[string]string{}, conditions: map[string]health.Condition{}}
	var retry backoff.Backoff
	var restore <-chan time.Time // It is nil while the Node is as it was written.
	var restored time.Time
	_, changed := r.agent.latestNode.get()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.write:
		case <-changed:
			node, next := r.agent.latestNode.get()
			changed = next
			if restore == nil && len(w.lackingLabels(node))+len(w.lackingConditions(node)) > 0 {
				restore = time.After(max(restoreAfter, restoreEvery-time.Since(restored)))
			}
			continue
		case <-restore:
			restore = nil
			node, _ := r.agent.latestNode.get()
			labels, conditions := w.lackingLabels(node), w.lackingConditions(node)
			if len(labels)+len(conditions) == 0 {
				continue
			}
			restored = time.Now()
			log.Info("Somebody has changed what the agent writes to the Node; writing it again", "labels", labels, "conditions", conditions)
			maps.DeleteFunc(w.labels, func(key, _ string) bool { return slices.Contains(labels, key) })
			maps.DeleteFunc(w.conditions, func(kind string, _ health.Condition) bool { return slices.Contains(conditions, kind) })
		}
		if err := r.writeOnce(ctx, w); err != nil {
			log.Info("The Node cannot be written; trying again", "error", err.Error())
			pause(ctx, retry.Next())
			notify(r.write)
			continue
		}
		retry.Reset()
	}
}

func (w written) lackingLabels(n nodeapi.Node) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(w.labels)) {
		if n.Metadata.Labels[key] != w.labels[key] {
			out = append(out, key)
		}
	}
	return out
}

// lackingConditions returns the types of the written conditions that the Node does not have.
func (w written) lackingConditions(n nodeapi.Node) []string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(w.conditions)) {
		c := w.conditions[kind]
		condition := nodeapi.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message}
		if !slices.Contains(n.Status.Conditions, condition) {
			out = append(out, kind)
		}
	}
	return out
}

// writeOnce writes the labels and conditions that have changed. While another plugin serves the GPUs, it does not write labels.
func (r *report) writeOnce(ctx context.Context, w written) error {
	var labels map[string]string
	var conditions map[string]health.Condition
	aside := false
	r.locked(func() {
		labels, conditions = maps.Clone(r.labels), maps.Clone(r.conditions)
		if r.driverGone != nil {
			conditions[r.driverGone.Type] = *r.driverGone
		}
		for _, why := range r.aside {
			aside = aside || why != ""
		}
	})
	if aside {
		clear(w.labels)
	} else if err := r.writeLabels(ctx, labels, w.labels); err != nil {
		return err
	}
	return writeConditions(ctx, r.agent.node, conditions, w.conditions)
}

func (r *report) writeLabels(ctx context.Context, next, written map[string]string) error {
	patch := map[string]any{}
	for key, value := range next {
		if written[key] != value {
			patch[key] = value
		}
	}
	for key := range written {
		if _, stays := next[key]; !stays {
			patch[key] = nil
		}
	}
	if len(patch) == 0 {
		return nil
	}
	if err := r.agent.node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{"metadata": map[string]any{"labels": patch}}); err != nil {
		return err
	}
	clear(written)
	maps.Copy(written, next)
	return nil
}

// writeConditions writes the conditions that differ from the last ones, and adds them to the latter.
func writeConditions(ctx context.Context, node *nodeapi.Client, next, last map[string]health.Condition) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var patch []map[string]string
	for _, kind := range slices.Sorted(maps.Keys(next)) {
		c := next[kind]
		if last[kind] == c {
			continue
		}
		condition := map[string]string{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message, "lastHeartbeatTime": now}
		if last[kind].Status != c.Status {
			condition["lastTransitionTime"] = now
		}
		patch = append(patch, condition)
	}
	if len(patch) == 0 {
		return nil
	}
	if err := node.Patch(ctx, "status", nodeapi.StrategicPatch, map[string]any{"status": map[string]any{"conditions": patch}}); err != nil {
		return err
	}
	maps.Copy(last, next)
	return nil
}
