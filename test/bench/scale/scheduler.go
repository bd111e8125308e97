package scale

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// noteNode records the room of a GPU node, and whether pods may be scheduled there. It ignores nodes without GPU replicas.
func (w *World) noteNode(n *corev1.Node) {
	replicas := n.Status.Allocatable[v1alpha1.ResourceGPUShared]
	if replicas.IsZero() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.rooms[n.Name]
	if r == nil {
		r = &room{zone: n.Labels[corev1.LabelTopologyZone], free: shape{
			milliCPU: n.Status.Allocatable.Cpu().MilliValue(), memoryMiB: n.Status.Allocatable.Memory().Value() >> 20, replicas: replicas.Value(),
		}}
		r.add(daemon, 1)
		w.rooms[n.Name] = r
	}
	open := n.DeletionTimestamp.IsZero() && !n.Spec.Unschedulable && isReady(n) &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key != v1alpha1.ResourceGPUShared })
	if open && !r.open {
		w.wake()
	}
	r.open = open
}

// keep adds a pod to the records. A pod without a node joins the queue of the scheduler.
func (w *World) keep(r *podRecord) {
	w.pods[r.key] = r
	if r.node == "" {
		w.waiting = append(w.waiting, r)
		w.wake()
	} else if room := w.rooms[r.node]; room != nil {
		room.add(r.shape, 1)
	}
}

// drop removes a pod from the records and frees its room.
func (w *World) drop(r *podRecord) {
	delete(w.pods, r.key)
	if r.node == "" {
		w.waiting = slices.DeleteFunc(w.waiting, func(o *podRecord) bool { return o == r })
	} else if room := w.rooms[r.node]; room != nil {
		room.add(r.shape, -1)
		w.wake()
	}
}

// wake makes the scheduler run once more. It does not block.
func (w *World) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// schedule binds pending pods to GPU nodes and recreates evicted pods until the context ends. As the kube-scheduler, it tries a pod's nominated node first
// and keeps the room of nominated pods free. Otherwise it selects the node with the fewest free replicas.
func (w *World) schedule(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
		}
		w.mu.Lock()
		owed := w.owed
		w.owed = nil
		bound, hopeless := w.place()
		w.mu.Unlock()
		for i, r := range owed {
			owed[i] = w.successor(r)
		}
		w.add(ctx, owed)
		w.update(ctx, bound, waits)
		w.update(ctx, bound, runs)
		w.update(ctx, hopeless, waits)
		select { // Handle changes in batches.
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// place finds nodes for the pending pods. It returns the pods that got a node, and those that fit on no node and are not marked as unschedulable yet.
func (w *World) place() (bound, hopeless []*podRecord) {
	type named struct {
		name string
		*room
	}
	var open []named
	for name, r := range w.rooms {
		if r.open && r.free.replicas > 0 {
			open = append(open, named{name, r})
		}
	}
	slices.SortFunc(open, func(a, b named) int { return strings.Compare(a.name, b.name) })
	bind := func(r *podRecord, n named) {
		r.node = n.name
		n.add(r.shape, 1)
		bound = append(bound, r)
	}
	// Others may not take the room of nominated pods.
	w.waiting = slices.DeleteFunc(w.waiting, func(r *podRecord) bool {
		n := named{r.nominated, w.rooms[r.nominated]}
		if n.room == nil || !n.holds(r.shape) {
			return false
		}
		bind(r, n)
		return true
	})
	full := map[shape]bool{} // The shapes that fit on no node. Rooms only lose space until the end.
	w.waiting = slices.DeleteFunc(w.waiting, func(r *podRecord) bool {
		best := named{}
		for _, o := range open {
			if full[r.shape] {
				break
			}
			if o.holds(r.shape) && (best.room == nil || o.free.replicas < best.free.replicas) {
				best = o
			}
		}
		if best.room == nil {
			full[r.shape] = true
			if !r.told {
				r.told, hopeless = true, append(hopeless, r)
			}
			return false
		}
		bind(r, best)
		return true
	})
	return bound, hopeless
}
