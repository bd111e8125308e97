package gather

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/facts"
)

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
	unknown, err := s.unknown.update(g.specChanges, func() (map[types.UID][]string, error) { return g.unknownFields(ctx, s.nodePools.value.Items) },
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
	return k.update(func() (uint64, bool) { return g.changes.countOf(listType[L]()) }, func() (L, error) {
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
	}, func(a, b L) bool { return equalItems(P(&a), P(&b)) })
}

// specChanges returns the number of changes of the objects from which unknown fields are read. It returns false if they are not counted.
func (g *Gatherer) specChanges() (uint64, bool) {
	var sum uint64
	for _, key := range []any{listType[karpv1.NodePoolList](), nodePool, gpuNodeClass} {
		n, ok := g.changes.countOf(key)
		if !ok {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

// +kubebuilder:rbac:groups=scheduling.k8s.io;scheduling.x-k8s.io;scheduling.volcano.sh;scheduling.run.ai,resources=podgroups,verbs=list;watch

// NewPodGroup returns an empty PodGroup of a kind, for a watch. PodGroups are read as unstructured objects, because each API has several versions.
func NewPodGroup(kind schema.GroupVersionKind) client.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}

func podGroupList(kind schema.GroupVersionKind) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	return list
}

// updatePodGroups reads PodGroups of which any has changed.
func (g *Gatherer) updatePodGroups(ctx context.Context) error {
	if g.state.podGroups == nil {
		g.state.podGroups = make([]kept[podGroups], len(g.PodGroups))
	}
	for i, kind := range g.PodGroups {
		differs, err := g.state.podGroups[i].update(func() (uint64, bool) { return g.changes.countOf(kind) }, func() (podGroups, error) { return g.listPodGroups(ctx, kind) },
			func(a, b podGroups) bool { return a.unreadable == b.unreadable && slices.Equal(a.all, b.all) })
		if err != nil {
			return err
		}
		g.fresh.kinds = g.fresh.kinds || differs
	}
	return nil
}

func (g *Gatherer) listPodGroups(ctx context.Context, kind schema.GroupVersionKind) (podGroups, error) {
	list, read := podGroupList(kind), g.Cached.List
	if g.followed == nil { // It may read from the API server.
		read = func(ctx context.Context, all client.ObjectList, options ...client.ListOption) error {
			return List(ctx, g.Cached, all, options...)
		}
	}
	if err := read(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		if g.unlessOptional(err) == nil {
			return podGroups{unreadable: true}, nil
		}
		return podGroups{}, fmt.Errorf("listing PodGroups of %s: %w", kind.Group, err)
	}
	groups := podGroups{all: make([]facts.PodGroup, len(list.Items))}
	for i := range list.Items {
		groups.all[i] = facts.PodGroupOf(&list.Items[i])
	}
	slices.SortFunc(groups.all, func(a, b facts.PodGroup) int { return a.Key.Compare(b.Key) })
	return groups, nil
}

// podGroups returns the PodGroups that were read last.
func (g *Gatherer) podGroups() facts.PodGroups {
	var served []facts.GroupAPI
	var all []facts.PodGroup
	for i, kind := range g.PodGroups {
		if read := &g.state.podGroups[i].value; !read.unreadable {
			served, all = append(served, facts.GroupAPI(kind.Group)), append(all, read.all...)
		}
	}
	return facts.NewPodGroups(served, all)
}
