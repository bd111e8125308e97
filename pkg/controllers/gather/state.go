package gather

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// state is what was read from the informers, kept from one look to the next. A look lists only the kinds of which an object has changed. The objects must not
// be changed, because several controllers share them.
type state struct {
	nodePools  kept[karpv1.NodePoolList]
	classes    kept[v1alpha1.GPUNodeClassList]
	nodes      kept[corev1.NodeList]
	pods       kept[corev1.PodList]
	daemonSets kept[appsv1.DaemonSetList]
	overlays   kept[karpv1alpha1.NodeOverlayList]
	rollouts   kept[v1alpha1.GPUImageRolloutList]
	namespaces kept[corev1.NamespaceList]
	volumes    kept[corev1.PersistentVolumeList]
	claims     kept[corev1.PersistentVolumeClaimList]
	storage    kept[storagev1.StorageClassList]
	csiNodes   kept[storagev1.CSINodeList]
	unknown    kept[map[types.UID][]string]
}

// kept is a value with the number of changes at the time when it was read.
type kept[T any] struct {
	is T
	// counted reports whether the value was read and its changes are counted.
	counted bool
	changes uint64
}

// update reads what has changed in the caches.
func (g *Gatherer) update(ctx context.Context) error {
	s := &g.state
	for _, update := range []func() error{
		func() error { return relist(ctx, g, &s.nodePools) },
		func() error { return relist(ctx, g, &s.classes) },
		func() error { return relist(ctx, g, &s.nodes) },
		func() error { return relist(ctx, g, &s.pods) },
		func() error { return relist(ctx, g, &s.daemonSets) },
		func() error { return relist(ctx, g, &s.namespaces) },
		func() error { return relist(ctx, g, &s.volumes) },
		func() error { return relist(ctx, g, &s.claims) },
		func() error { return relist(ctx, g, &s.storage) },
		func() error { return relist(ctx, g, &s.csiNodes) },
		func() error {
			return s.unknown.update(g.specChanges, func() (map[types.UID][]string, error) { return g.unknownFields(ctx, s.nodePools.is.Items) })
		},
	} {
		if err := update(); err != nil {
			return err
		}
	}
	if g.NodeOverlays {
		if err := relist(ctx, g, &s.overlays); err != nil {
			return err
		}
	}
	if g.ImageRollouts {
		return relist(ctx, g, &s.rollouts)
	}
	return nil
}

// relist lists a kind if one of its objects has changed. It reads the counter before it lists, so an object that changes meanwhile is listed again next time.
func relist[L any, P interface {
	*L
	client.ObjectList
}](ctx context.Context, g *Gatherer, k *kept[L]) error {
	return k.update(func() (uint64, bool) { return g.changes.of(typeOf[L]()) }, func() (L, error) {
		var list L
		if err := g.Cached.List(ctx, P(&list)); err != nil {
			return list, fmt.Errorf("listing %T: %w", &list, err)
		}
		return list, nil
	})
}

// update reads the value unless its changes are counted and the number is the same as before.
func (k *kept[T]) update(counted func() (uint64, bool), read func() (T, error)) error {
	now, ok := counted()
	if ok && k.counted && now == k.changes {
		return nil
	}
	is, err := read()
	if err != nil {
		return err
	}
	*k = kept[T]{is, ok, now}
	return nil
}

// specChanges returns the number of changes of the objects from which unknown fields are read. It returns false if they are not counted.
func (g *Gatherer) specChanges() (uint64, bool) {
	var sum uint64
	for _, key := range []any{typeOf[karpv1.NodePoolList](), nodePool, gpuNodeClass} {
		n, ok := g.changes.of(key)
		if !ok {
			return 0, false
		}
		sum += n
	}
	return sum, true
}
