package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// schedule binds pending pods to GPU nodes and recreates evicted pods until the context ends. It tries a pod's nominated node first, as the kube-scheduler
// does. Otherwise it selects the node with the fewest free replicas.
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
		w.each(ctx, owed, func(r *podRecord) error { return w.create1(ctx, w.successor(r)) })
		w.each(ctx, bound, func(r *podRecord) error { return w.bind(ctx, r) })
		w.each(ctx, hopeless, func(r *podRecord) error { return w.tell(ctx, r) })
		select { // Handle changes in batches.
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// place finds nodes for the pending pods. It returns the pods that got a node, and those that fit on no node and are not marked as unschedulable yet.
func (w *World) place() (bound, hopeless []*podRecord) {
	var names []string
	for name, r := range w.rooms {
		if r.open && r.free.replicas > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	w.waiting = slices.DeleteFunc(w.waiting, func(r *podRecord) bool {
		best := ""
		if room := w.rooms[r.nominated]; room != nil && room.holds(r.shape) {
			best = r.nominated
		} else {
			for _, name := range names {
				if w.rooms[name].holds(r.shape) && (best == "" || w.rooms[name].free.replicas < w.rooms[best].free.replicas) {
					best = name
				}
			}
		}
		if best == "" {
			if !r.told {
				r.told, hopeless = true, append(hopeless, r)
			}
			return false
		}
		r.node = best
		w.rooms[best].add(r.shape, 1)
		bound = append(bound, r)
		return true
	})
	return bound, hopeless
}

// each calls do for each pod, several at a time. It retries after errors until the context ends.
func (w *World) each(ctx context.Context, pods []*podRecord, do func(*podRecord) error) {
	w.parallel(len(pods), func(i int) {
		for {
			err := do(pods[i])
			if err == nil || ctx.Err() != nil {
				return
			}
			if !apierrors.IsServerTimeout(err) {
				w.log("%s: %v", pods[i].key, err)
			}
			time.Sleep(time.Second)
		}
	})
}

func (w *World) bind(ctx context.Context, r *podRecord) error {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, Name: r.key.Name}}
	err := w.api.SubResource("binding").Create(ctx, p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: r.node}})
	if apierrors.IsNotFound(err) {
		return nil // The pod was deleted meanwhile.
	}
	if err != nil && !apierrors.IsConflict(err) { // On a conflict, an earlier attempt bound the pod and its response was lost.
		return err
	}
	return w.runs(ctx, r.key, pod(r.key.Namespace, r.key.Name, r.app, r.shape))
}

// runs reports a pod as running, as its kubelet does.
func (w *World) runs(ctx context.Context, key client.ObjectKey, p *corev1.Pod) error {
	return w.patchStatus(ctx, key, runningStatus(p, time.Now()))
}

// tell marks a pod as unschedulable.
func (w *World) tell(ctx context.Context, r *podRecord) error {
	return w.patchStatus(ctx, r.key, map[string]any{"conditions": []corev1.PodCondition{unschedulable(time.Now())}})
}

func (w *World) patchStatus(ctx context.Context, key client.ObjectKey, status any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	return client.IgnoreNotFound(w.api.Status().Patch(ctx, p, client.RawPatch(types.MergePatchType, patch)))
}

// successor returns the pod that a ReplicaSet creates to replace r.
func (w *World) successor(r *podRecord) *podRecord {
	return &podRecord{key: client.ObjectKey{Namespace: r.key.Namespace, Name: fmt.Sprintf("%s-6f4c9d7b58-r%d", r.app, w.serial.Add(1))}, app: r.app, shape: r.shape}
}

// create1 creates a pod. A pod with a node runs at once. A pod without a node waits for the scheduler.
func (w *World) create1(ctx context.Context, r *podRecord) error {
	p := pod(r.key.Namespace, r.key.Name, r.app, r.shape)
	p.Spec.NodeName = r.node
	if err := client.IgnoreAlreadyExists(w.api.Create(ctx, p)); err != nil {
		return err
	}
	w.mu.Lock()
	w.keep(r)
	w.mu.Unlock()
	if r.node == "" {
		return nil
	}
	return w.runs(ctx, r.key, p)
}
