package gather

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/snapshot/facts"
)

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

// podGroups are the PodGroups of one API.
type podGroups struct {
	all []facts.PodGroup
	// unreadable reports that the user may not read them.
	unreadable bool
}

// updatePodGroups reads PodGroups of which any has changed.
func (g *Gatherer) updatePodGroups(ctx context.Context) error {
	if g.state.podGroups == nil {
		g.state.podGroups = make([]kept[podGroups], len(g.PodGroups))
	}
	for i, kind := range g.PodGroups {
		differs, err := g.state.podGroups[i].update(func() (uint64, bool) { return g.changes.of(kind) }, func() (podGroups, error) { return g.listPodGroups(ctx, kind) },
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
		if read := &g.state.podGroups[i].is; !read.unreadable {
			served, all = append(served, facts.GroupAPI(kind.Group)), append(all, read.all...)
		}
	}
	return facts.NewPodGroups(served, all)
}
