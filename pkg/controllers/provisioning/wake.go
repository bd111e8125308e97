package provisioning

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// kube-scheduler 1.36 counts the share of a device twice while it writes the claim. A pod that needs the last share is then unschedulable. The
// scheduler does not retry it when the claim is written, but only when a ResourceSlice, a DeviceClass or the labels of a Node change, or after five
// minutes.

const (
	// wakeAfter is how long plans must place an unschedulable pod on a node with backend DRA before Karve makes the scheduler retry it. It is also the
	// shortest interval between two such retries.
	wakeAfter = 10 * time.Second
	// maxWake is the longest interval for one pod. After it, the scheduler retries unschedulable pods by itself.
	maxWake = 5 * time.Minute
)

// wakes has the unschedulable pods that plans place on nodes with backend DRA, by UID, and when Karve last made the scheduler retry pods.
type wakes struct {
	pods map[types.UID]overdue
	last time.Time
}

// overdue is a pod that the scheduler should have bound. Its pause doubles each time that the scheduler has retried it without success.
type overdue struct {
	since time.Time
	pause time.Duration
}

// due returns a Node whose labels to change so that the scheduler retries pods, or nil if there is no reason to. It also returns when to ask again, or
// 0 if no pod waits for the scheduler. One Node is enough: a change of its labels makes the scheduler retry all pods that had no devices.
func (w *wakes) due(view *snapshot.View, placements []planner.Placement, now time.Time) (*corev1.Node, time.Duration) {
	var on *corev1.Node
	var next time.Duration
	earliest := func(wait time.Duration) {
		if next == 0 || wait < next {
			next = wait
		}
	}
	left := max(0, wakeAfter-now.Sub(w.last))
	placed := map[types.UID]overdue{}
	for _, p := range placements {
		node := openDRA(view, p.Node)
		if node == nil {
			continue
		}
		for _, name := range p.Pods {
			pod := view.Pods[name]
			if pod.Spec.NodeName != "" || facts.IsVirtual(pod) {
				continue // It runs on a machine that is leaving, or does not exist.
			}
			o, known := w.pods[pod.UID]
			if !known {
				o = overdue{now, wakeAfter}
			}
			wait := max(left, o.since.Add(o.pause).Sub(now))
			if wait <= 0 {
				on = node
				o = overdue{now, min(2*o.pause, maxWake)}
				wait = o.pause
			}
			earliest(wait)
			placed[pod.UID] = o
		}
	}
	w.pods = placed
	if on != nil {
		w.last = now
	}
	return on, next
}

// openDRA returns the Node of a started machine of Karve whose GPUs a DRA driver serves. It returns nil for other nodes and for those to which Karve
// admits no pods.
func openDRA(view *snapshot.View, node int) *corev1.Node {
	m := view.MachineOn(node)
	if m == nil || m.Node == nil || view.Starting(node) || nodecontract.DriverOf(m.Promise.Backend) == "" || facts.HasTaint(m.Node, v1alpha1.DisruptingTaintKey) {
		return nil
	}
	return m.Node
}

// wake makes the scheduler retry pods that have had a place for a while. It returns when to ask again, or 0 if no pod waits for the scheduler.
func (c *Controller) wake(ctx context.Context, view *snapshot.View, plan planner.Plan) (time.Duration, error) {
	node, next := c.woken.due(view, plan.Placements, c.Clock.Now())
	if node == nil {
		return next, nil
	}
	changed := node.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	changed.Labels[v1alpha1.SchedulingRetriedLabel] = strconv.FormatInt(c.Clock.Now().Unix(), 10)
	if err := c.Client.Patch(ctx, changed, client.MergeFrom(node)); client.IgnoreNotFound(err) != nil {
		return next, fmt.Errorf("labeling node %s so that the scheduler tries pods again: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("Made the scheduler try pods again that have had a place", "node", klog.KObj(node), "pods", len(c.woken.pods))
	return next, nil
}
