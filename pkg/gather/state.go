package gather

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// state caches the objects of the kinds with few objects between reads. A read lists only the kinds of which an object has changed. Several controllers
// share the objects, so they must not be changed.
type state struct {
	nodePools  kept[karpv1.NodePoolList]
	classes    kept[v1alpha1.GPUNodeClassList]
	daemonSets kept[appsv1.DaemonSetList]
	overlays   kept[karpv1alpha1.NodeOverlayList]
	rollouts   kept[v1alpha1.GPUImageRolloutList]
	namespaces kept[corev1.NamespaceList]
	storage    kept[storagev1.StorageClassList]
	unknown    kept[map[types.UID][]string]

	slices        kept[resourcev1.ResourceSliceList]
	deviceClasses kept[resourcev1.DeviceClassList]
	claims        kept[resourcev1.ResourceClaimList]
	templates     kept[resourcev1.ResourceClaimTemplateList]
	taintRules    kept[resourcev1.DeviceTaintRuleList]

	// podGroups has the same indices as Gatherer.PodGroups.
	podGroups []kept[podGroups]
}

// kept is a value and the number of changes when it was read.
type kept[T any] struct {
	is T
	// counted reports whether the value was read and its changes are counted.
	counted bool
	changes uint64
}

// update reads what has changed in the caches.
func (g *Gatherer) update(ctx context.Context) error {
	s := &g.state
	updates := []func() (bool, error){
		func() (bool, error) { return relist(ctx, g, &s.nodePools) },
		func() (bool, error) { return relist(ctx, g, &s.classes) },
		func() (bool, error) { return relist(ctx, g, &s.daemonSets) },
		func() (bool, error) { return relist(ctx, g, &s.namespaces) },
		func() (bool, error) { return relist(ctx, g, &s.storage) },
	}
	if g.NodeOverlays {
		updates = append(updates, func() (bool, error) { return relist(ctx, g, &s.overlays) })
	}
	if g.ImageRollouts {
		updates = append(updates, func() (bool, error) {
			differs, err := relist(ctx, g, &s.rollouts)
			return differs, g.unlessOptional(err)
		})
	}
	differs, errs := make([]bool, len(updates)), make([]error, len(updates))
	var group sync.WaitGroup
	for i, update := range updates { // Each is a round trip if it reads from the API server.
		group.Go(func() { differs[i], errs[i] = update() })
	}
	group.Wait()
	g.fresh.kinds = g.fresh.kinds || slices.Contains(differs, true)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	unknown, err := s.unknown.update(g.specChanges, func() (map[types.UID][]string, error) { return g.unknownFields(ctx, s.nodePools.is.Items) },
		func(a, b map[types.UID][]string) bool { return maps.EqualFunc(a, b, slices.Equal) })
	if err != nil {
		return err
	}
	g.fresh.kinds = g.fresh.kinds || unknown
	return g.updatePodGroups(ctx)
}

// relist lists a kind if one of its objects has changed. It reads the counter before it lists, so an object that changes meanwhile is listed again next
// time.
func relist[L any, P interface {
	*L
	client.ObjectList
}](ctx context.Context, g *Gatherer, k *kept[L]) (differs bool, err error) {
	return k.update(func() (uint64, bool) { return g.changes.of(typeOf[L]()) }, func() (L, error) {
		var list L
		read := g.Cached.List
		if g.followed == nil { // It may read from the API server.
			read = func(ctx context.Context, all client.ObjectList, options ...client.ListOption) error {
				return List(ctx, g.Cached, all, options...)
			}
		}
		if err := read(ctx, P(&list)); err != nil {
			return list, fmt.Errorf("listing %T: %w", &list, err)
		}
		return list, nil
	}, func(a, b L) bool { return sameItems(P(&a), P(&b)) })
}

// update reads the value unless its changes are counted and the number is the same as before. It reports whether the value differs.
func (k *kept[T]) update(counted func() (uint64, bool), read func() (T, error), same func(a, b T) bool) (differs bool, err error) {
	now, ok := counted()
	if ok && k.counted && now == k.changes {
		return false, nil
	}
	is, err := read()
	if err != nil {
		return false, err
	}
	differs = !k.counted || !same(k.is, is)
	*k = kept[T]{is, ok, now}
	return differs, nil
}

// sameItems reports whether two lists are equal as far as decisions are concerned. Caches list objects in any order.
func sameItems(a, b client.ObjectList) bool {
	return maps.EqualFunc(itemsOf(a), itemsOf(b), func(before, after client.Object) bool { return facts.Same(before, after) })
}

func itemsOf(list client.ObjectList) map[client.ObjectKey]client.Object {
	items := map[client.ObjectKey]client.Object{}
	_ = meta.EachListItem(list, func(o runtime.Object) error { // It returns an error only if the function does.
		if object, ok := o.(client.Object); ok {
			items[client.ObjectKeyFromObject(object)] = object
		}
		return nil
	})
	return items
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
