package scale

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/test/harness/cluster"
)

// watch watches pods, nodes and NodeClaims until the context ends. It returns once the caches are synced.
func (w *World) watch(ctx context.Context) error {
	var err error
	w.seen, err = cache.New(w.RESTConfig(), cache.Options{Scheme: w.api.Scheme(), ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Transform: slimPod}, &corev1.Node{}: {Transform: slimNode},
	}})
	if err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	var synced []toolscache.InformerSynced
	for object, note := range map[client.Object]func(o any, gone bool){&corev1.Pod{}: w.podChanged, &corev1.Node{}: w.nodeChanged, &karpv1.NodeClaim{}: w.claimChanged} {
		informer, err := w.seen.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		// The second function handles objects that were deleted while the watch was broken.
		handler, err := informer.AddEventHandler(cluster.Notes(note, func(o any) { note(o, true) }))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		synced = append(synced, handler.HasSynced)
	}
	w.running.Go(func() { _ = w.seen.Start(ctx) }) // Start returns when the context ends.
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("watching: %w", ctx.Err())
	}
	return nil
}

// slimPod keeps only the fields that the scheduler needs, so that 50,000 pods take little memory.
func slimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	slim := &corev1.Pod{}
	slim.Namespace, slim.Name, slim.UID, slim.ResourceVersion = p.Namespace, p.Name, p.UID, p.ResourceVersion
	slim.Spec.NodeName, slim.Status.NominatedNodeName = p.Spec.NodeName, p.Status.NominatedNodeName
	return slim, nil
}

func slimNode(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		n.ManagedFields, n.Status.Images = nil, nil
	}
	return o, nil
}

// podChanged records the nominated node of a pending pod, and the deletion of a pod. A deleted pod that is still in the records was evicted: its ReplicaSet
// creates another.
func (w *World) podChanged(o any, gone bool) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.pods[client.ObjectKeyFromObject(p)]
	switch {
	case r == nil:
	case gone:
		w.drop(r)
		w.owed = append(w.owed, r)
		w.wake()
	case p.Spec.NodeName == "" && p.Status.NominatedNodeName != r.nominated:
		r.nominated = p.Status.NominatedNodeName
		w.wake()
	}
}

func (w *World) nodeChanged(o any, gone bool) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	if !gone {
		w.noteNode(n)
	} else {
		w.mu.Lock()
		delete(w.rooms, n.Name)
		w.mu.Unlock()
		w.fleet.leave(n.Name)
	}
	if gone || !isReady(n) {
		w.queue.Add(work{node: n.Name})
	}
	if owners := n.OwnerReferences; len(owners) > 0 && n.Labels[karpv1.NodeInitializedLabelKey] == "" {
		w.queue.Add(work{claim: owners[0].Name})
	}
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// claimChanged records a new or deleted NodeClaim. It queues the NodeClaim for the cloud if it is not initialized or is being deleted.
func (w *World) claimChanged(o any, gone bool) {
	c, ok := o.(*karpv1.NodeClaim)
	if !ok {
		return
	}
	w.mu.Lock()
	r, known := w.claims[c.UID]
	if !known {
		r = claimRecord{name: c.Name, seen: time.Now()}
	}
	r.gone = gone
	w.claims[c.UID] = r
	w.mu.Unlock()
	if !gone && (!c.DeletionTimestamp.IsZero() || !isTrue(c, karpv1.ConditionTypeInitialized)) {
		w.queue.Add(work{claim: c.Name})
	}
}

func isTrue(c *karpv1.NodeClaim, condition string) bool {
	for i := range c.Status.Conditions {
		if c.Status.Conditions[i].Type == condition {
			return c.Status.Conditions[i].IsTrue()
		}
	}
	return false
}
