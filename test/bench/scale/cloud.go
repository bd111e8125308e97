package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

const (
	// fastest and slowest are the bounds of the time that the cloud takes to launch a machine.
	fastest, slowest = 500 * time.Millisecond, 2 * time.Second
	// workers is how many nodes and NodeClaims are processed concurrently. Karpenter has a thousand workers for NodeClaims.
	workers = 64
	// boots is the time from the launch of a machine until its kubelet registers the node.
	boots = time.Second
)

// work names a node or a NodeClaim that needs the next step. One of the fields is empty.
type work struct{ node, claim string }

// machines plays the cloud, Karpenter and the kubelets: it processes new and deleted NodeClaims and nodes until the context ends. It plays Karpenter only
// when Karve is measured, because Karve runs next to a Karpenter.
func (w *World) machines(ctx context.Context) {
	for range workers {
		w.running.Go(func() {
			for {
				item, quit := w.queue.Get()
				if quit {
					return
				}
				again, err := w.act(ctx, item)
				switch {
				case apierrors.IsConflict(err) || err == nil && again > 0:
					w.queue.AddAfter(item, max(again, 50*time.Millisecond))
				case err != nil && ctx.Err() == nil:
					w.log("%v: %v", item, err)
					w.queue.AddAfter(item, time.Second)
				}
				w.queue.Done(item)
			}
		})
	}
}

// act takes the next step for a node or a NodeClaim. It returns the time after which to call it again, or 0 to wait for the next change.
func (w *World) act(ctx context.Context, item work) (time.Duration, error) {
	if item.node != "" {
		n := &corev1.Node{}
		err := w.seen.Get(ctx, client.ObjectKey{Name: item.node}, n)
		switch {
		case apierrors.IsNotFound(err):
			return 0, w.clear(ctx, item.node)
		case err != nil || isReady(n) || !n.DeletionTimestamp.IsZero():
			return 0, err
		}
		return 0, w.boot(ctx, n)
	}
	c := &karpv1.NodeClaim{}
	if err := w.seen.Get(ctx, client.ObjectKey{Name: item.claim}, c); err != nil || !w.plays {
		return 0, client.IgnoreNotFound(err)
	}
	switch {
	case w.stale(c):
		return 0, nil // The watch will show the next state.
	case !c.DeletionTimestamp.IsZero():
		return 0, w.end(ctx, c.DeepCopy())
	case !isTrue(c, karpv1.ConditionTypeLaunched):
		if wait := time.Until(w.seenAt(c).Add(delay(c.Name))); wait > 0 {
			return wait, nil
		}
		return boots, w.launch(ctx, c.DeepCopy())
	case !isTrue(c, karpv1.ConditionTypeRegistered):
		if wait := time.Until(c.StatusConditions().Get(karpv1.ConditionTypeLaunched).LastTransitionTime.Add(boots)); wait > 0 {
			return wait, nil
		}
		return 0, w.register(ctx, c.DeepCopy())
	case !isTrue(c, karpv1.ConditionTypeInitialized):
		return 0, w.initialize(ctx, c.DeepCopy())
	}
	return 0, nil
}

// stale reports whether a NodeClaim is older than the last write of the machines, as it may be in a cache. Repeating a step would cost the API server as much as the step.
func (w *World) stale(c *karpv1.NodeClaim) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := w.claims[c.UID].version
	if written == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(c.ResourceVersion, written)
	return err == nil && order < 0
}

// report writes the status of a NodeClaim.
func (w *World) report(ctx context.Context, c *karpv1.NodeClaim) error {
	if err := w.api.Status().Update(ctx, c); err != nil {
		return client.IgnoreNotFound(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	record := w.claims[c.UID]
	record.version = c.ResourceVersion
	w.claims[c.UID] = record
	return nil
}

func (w *World) seenAt(c *karpv1.NodeClaim) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claims[c.UID].seen
}

// delay returns the time that the cloud takes to launch the machine of a NodeClaim. It depends only on the name.
func delay(claim string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(claim))
	return fastest + time.Duration(h.Sum32()%1000)*(slowest-fastest)/1000
}

// launch updates a NodeClaim as Karpenter does once the cloud has launched the machine: it sets the labels, the finalizer and the status.
func (w *World) launch(ctx context.Context, c *karpv1.NodeClaim) error {
	t := w.types[valueOf(c, corev1.LabelInstanceTypeStable)]
	if t == nil {
		return fmt.Errorf("NodeClaim %s asks for an instance type that there is not", c.Name)
	}
	labels := map[string]string{}
	for _, key := range []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, karpv1.CapacityTypeLabelKey} {
		labels[key] = valueOf(c, key)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "finalizers": []string{terminates}}})
	if err != nil {
		return err
	}
	if err := w.api.Patch(ctx, c, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return client.IgnoreNotFound(err)
	}
	launched(c, c.Name, t)
	if err := w.report(ctx, c); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	record := w.claims[c.UID]
	record.launch = time.Since(record.seen)
	w.claims[c.UID] = record
	return nil
}

// register creates a Node that is ready, with its Lease, CSINode and DaemonSet pod, as the kubelet of a new machine does, and marks the NodeClaim as registered, as
// Karpenter does.
func (w *World) register(ctx context.Context, c *karpv1.NodeClaim) error {
	n := machineNode(c.Name, c, w.types[valueOf(c, corev1.LabelInstanceTypeStable)], time.Now())
	n.UID, n.CreationTimestamp = uuid.NewUUID(), metav1.Now()
	if err := w.write(ctx, etcd.create, append(w.besides(n.Name), n)); err != nil {
		return err
	}
	c.Status.NodeName = n.Name
	c.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	return w.report(ctx, c)
}

// initialize marks the node and the NodeClaim as initialized, as Karpenter does once the node is ready and has no startup taints.
func (w *World) initialize(ctx context.Context, c *karpv1.NodeClaim) error {
	n := &corev1.Node{}
	if err := w.seen.Get(ctx, client.ObjectKey{Name: c.Status.NodeName}, n); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !isReady(n) || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key != v1alpha1.ResourceGPUShared }) {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, karpv1.NodeInitializedLabelKey)
	if err := w.api.Patch(ctx, n.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return client.IgnoreNotFound(err)
	}
	c.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
	return w.report(ctx, c)
}

// boot makes a node ready that Karpenter's kwok provider has created. It creates the Lease, the CSINode and the pod of the DaemonSet, starts the heartbeats and removes the not-ready taint of the
// API server. It reports the node as ready last, so that a retry after an error repeats all steps.
func (w *World) boot(ctx context.Context, n *corev1.Node) error {
	if err := w.write(ctx, etcd.put, w.besides(n.Name)); err != nil {
		return err
	}
	fresh := &corev1.Node{}
	if err := w.api.Get(ctx, client.ObjectKeyFromObject(n), fresh); err != nil {
		return client.IgnoreNotFound(err)
	}
	fresh.Spec.Taints = slices.DeleteFunc(fresh.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	if err := w.api.Update(ctx, fresh); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(w.fleet.report(ctx, n.Name))
}

// end terminates a NodeClaim that is being deleted, as Karpenter does: it evicts the pods, deletes the node and removes the finalizers.
func (w *World) end(ctx context.Context, c *karpv1.NodeClaim) error {
	if name := c.Status.NodeName; name != "" {
		w.mu.Lock()
		if room := w.rooms[name]; room != nil {
			room.open = false
		}
		w.mu.Unlock()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := w.evictAll(ctx, name); err != nil {
			return err
		}
		if err := client.IgnoreNotFound(w.api.Delete(ctx, n)); err != nil {
			return err
		}
		if err := client.IgnoreNotFound(w.api.Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))); err != nil {
			return err
		}
	}
	return client.IgnoreNotFound(w.api.Patch(ctx, c, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}

// clear deletes the Lease, the CSINode and the pods of a deleted node, as the garbage collectors of a cluster do.
func (w *World) clear(ctx context.Context, node string) error {
	if err := w.write(ctx, etcd.remove, []client.Object{lease(node, time.Time{}), csiNode(node), daemonPod(node)}); err != nil {
		return err
	}
	return w.evictAll(ctx, node)
}

// evictAll deletes the pods of a node. The scheduler creates their successors.
func (w *World) evictAll(ctx context.Context, node string) error {
	w.mu.Lock()
	var pods []*podRecord
	for _, r := range w.pods {
		if r.node == node {
			pods = append(pods, r)
		}
	}
	w.mu.Unlock()
	return w.write(ctx, etcd.remove, w.objects(pods, waits))
}
