package gather

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/capacity"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot/facts"
)

// classesInParallel is how many node classes are read concurrently.
const classesInParallel = 16

// classTimeout is how long one node class may take to be read. A conversion webhook that does not answer must not delay the pools of other classes.
const classTimeout = 10 * time.Second

// setNodeClasses sets the node classes to which the GPUNodeClasses refer. If the caches are followed, it reuses the last result for two seconds. The time
// starts when the read has ended, so that a slow API server does not cause a read for every caller.
func (g *Gatherer) setNodeClasses(ctx context.Context, c *facts.Cluster) error {
	now, n := g.Clock.Now(), &g.nodeClasses
	kept := g.followed != nil && now.Sub(n.at) <= reuseTime
	read := map[v1alpha1.NodeClassReference]facts.NodeClassState{}
	var unread []v1alpha1.NodeClassReference
	for i := range c.GPUNodeClasses {
		class := &c.GPUNodeClasses[i]
		g.Ledger.Learn(class.Name, class.Status.RefusedOfferings, now)
		ref := class.Spec.NodeClassRef
		if _, ok := read[ref]; ok {
			continue
		}
		state, ok := n.read[ref]
		if !ok || !kept {
			unread = append(unread, ref)
		}
		read[ref] = state
	}
	states, errs := make([]facts.NodeClassState, len(unread)), make([]error, len(unread))
	workqueue.ParallelizeUntil(ctx, classesInParallel, len(unread), func(i int) { states[i], errs[i] = g.NodeClass(ctx, unread[i]) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, ref := range unread {
		read[ref] = states[i]
	}
	if !kept {
		n.at = g.Clock.Now()
	}
	g.fresh.classes = g.fresh.classes || !maps.EqualFunc(n.read, read, sameState)
	n.read = read
	rules := g.rules()
	if g.fresh.classes || g.fresh.kinds || g.fresh.objects.Machines || !reflect.DeepEqual(n.rules, rules) {
		known := &facts.Cluster{Index: c.Index, Nodes: c.Nodes, NodeClaims: c.NodeClaims, NodeClasses: maps.Clone(read)}
		drift.AcceptGoodImages(known, g.state.rollouts.value.Items)
		learned := g.learn(ctx, known)
		book := prices.NewBook(c.NodeOverlays, rules)
		if !maps.EqualFunc(n.accepted, known.NodeClasses, sameState) || !maps.Equal(learned, g.learned) || !reflect.DeepEqual(n.book, book) {
			n.accepted, g.learned, n.rules, n.book = maps.Clone(known.NodeClasses), learned, rules, book
			learned.Correct(known)
			known.UsePrices(book)
			n.used = known.NodeClasses
		}
	}
	c.NodeClasses, c.PriceLimits = maps.Clone(n.used), n.book.Limits()
	return nil
}

func (g *Gatherer) rules() []prices.Rule {
	if g.Prices == nil {
		return nil
	}
	return g.Prices()
}

// sameState reports whether two states of a node class are equal. Catalogs return the same list while nothing changes.
func sameState(a, b facts.NodeClassState) bool {
	same := len(a.InstanceTypes) == len(b.InstanceTypes) && (len(a.InstanceTypes) == 0 || &a.InstanceTypes[0] == &b.InstanceTypes[0])
	a.InstanceTypes, b.InstanceTypes = nil, nil
	return same && reflect.DeepEqual(a, b)
}

// learn returns the known capacities, updated with those of the existing machines.
func (g *Gatherer) learn(ctx context.Context, c *facts.Cluster) capacity.Learned {
	now := capacity.Learn(c, g.learned)
	for kind, seen := range now {
		if before, ok := g.learned[kind]; !ok || before.Allocatable != seen.Allocatable {
			log.FromContext(ctx).V(1).Info("A machine shows what its kind has for pods", "instanceType", kind.InstanceType, "nodeClass", kind.NodeClass.Name,
				"image", kind.Image, "memoryBytes", seen.MemoryBytes, "allocatable", seen.Allocatable)
		}
	}
	return now
}

// NodeClass reads the state of one of the cloud's node classes from the API server. A cached state may be wrong: a class that was just changed is not
// Ready until Karpenter has reconciled it, and Karpenter deletes NodeClaims that refer to such a class.
func (g *Gatherer) NodeClass(ctx context.Context, ref v1alpha1.NodeClassReference) (facts.NodeClassState, error) {
	mapping, err := g.Mapper.RESTMapping(schema.GroupKind{Group: ref.Group, Kind: ref.Kind})
	if meta.IsNoMatchError(err) {
		return facts.NodeClassState{Reason: "NodeClassKindUnknown", Message: fmt.Sprintf(
			"this cluster has no kind %s in group %s: install Karpenter's provider for it, or correct spec.nodeClassRef", ref.Kind, ref.Group)}, nil
	}
	if err != nil {
		return facts.NodeClassState{}, fmt.Errorf("looking up kind %s: %w", ref.Kind, err)
	}
	class := &unstructured.Unstructured{}
	class.SetGroupVersionKind(mapping.GroupVersionKind)
	reading, cancel := context.WithTimeout(ctx, classTimeout)
	defer cancel()
	err = g.Live.Get(reading, client.ObjectKey{Name: ref.Name}, class)
	switch {
	case apierrors.IsNotFound(err):
		return facts.NodeClassState{Reason: "NodeClassNotFound", Message: fmt.Sprintf(
			"%s %q does not exist: create it, or name another in spec.nodeClassRef", ref.Kind, ref.Name)}, nil
	case apierrors.IsForbidden(err):
		return facts.NodeClassState{Reason: "NodeClassForbidden", Message: fmt.Sprintf(
			"the controller may not read %s %q: allow it get on that kind", ref.Kind, ref.Name)}, nil
	case ctx.Err() != nil:
		return facts.NodeClassState{}, ctx.Err()
	case err != nil:
		// A class that cannot be read, for example because its conversion webhook is down, must not stop the pools of other classes.
		return facts.NodeClassState{Reason: "NodeClassUnreadable", Message: fmt.Sprintf("%s %q cannot be read: %v", ref.Kind, ref.Name, err)}, nil
	}
	state := facts.NodeClassStateOf(class)
	state.Learn(g.Catalog.InstanceTypes(ctx, class))
	return state, nil
}
