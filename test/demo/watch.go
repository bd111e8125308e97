package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
)

// pod, claim and node are what the demo remembers of an object, even after its deletion. The times are those of the watch events.
type pod struct {
	name, app, node     string
	seen, running, gone time.Time
}

type claim struct {
	name, pool, node                 string
	instanceType, zone, capacityType string
	seen, gone                       time.Time
	launched                         bool
}

type node struct {
	name, pool string
	ready      bool
	// replicas is the number of allocatable replicas, or of those in the node's ResourceSlice.
	replicas   int64
	seen, gone time.Time
}

// seen is everything that ever existed.
type seen struct {
	pods   []pod
	claims []claim
	nodes  []node
}

// watcher watches pods, claims and nodes from the start of the cluster to its end.
type watcher struct {
	resource corev1.ResourceName

	mu      sync.Mutex
	pods    map[types.UID]pod
	claims  map[types.UID]claim
	nodes   map[types.UID]node
	slices  map[types.UID]resourcev1.ResourceSlice
	changed chan struct{} // closed at the next change
}

// newWatcher starts the watches and returns when they are synced. They end with the context. Replicas are counted by the resource.
func newWatcher(ctx context.Context, config *rest.Config, resource corev1.ResourceName) (*watcher, error) {
	scheme, err := gather.Scheme()
	if err != nil {
		return nil, err
	}
	objects, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("watching the cluster: %w", err)
	}
	w := &watcher{
		resource: resource, pods: map[types.UID]pod{}, claims: map[types.UID]claim{}, nodes: map[types.UID]node{}, slices: map[types.UID]resourcev1.ResourceSlice{}, changed: make(chan struct{}),
	}
	for _, of := range []client.Object{&corev1.Pod{}, &corev1.Node{}, &karpv1.NodeClaim{}, &resourcev1.ResourceSlice{}} {
		informer, err := objects.GetInformer(ctx, of, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watching the cluster: %w", err)
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { w.note(o, false) },
			UpdateFunc: func(_, o any) { w.note(o, false) },
			DeleteFunc: func(o any) { w.note(o, true) },
		})
		if err != nil {
			return nil, fmt.Errorf("watching the cluster: %w", err)
		}
	}
	go func() { _ = objects.Start(ctx) }() // it fails only if it is started twice
	if !objects.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("watching the cluster: %w", context.Cause(ctx))
	}
	return w, nil
}

func (w *watcher) note(o any, gone bool) {
	if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = tombstone.Obj
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := o.(type) {
	case *corev1.Pod:
		w.pods[o.UID] = notePod(w.pods[o.UID], o, now, gone)
	case *karpv1.NodeClaim:
		w.claims[o.UID] = noteClaim(w.claims[o.UID], o, now, gone)
	case *corev1.Node:
		w.nodes[o.UID] = w.noteNode(w.nodes[o.UID], o, now, gone)
	case *resourcev1.ResourceSlice:
		w.slices[o.UID] = *o
		if gone {
			delete(w.slices, o.UID)
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func notePod(p pod, o *corev1.Pod, now time.Time, gone bool) pod {
	p.name, p.app, p.node = o.Name, o.Labels["app"], o.Spec.NodeName
	first(&p.seen, true, now)
	first(&p.running, o.Status.Phase == corev1.PodRunning, now)
	first(&p.gone, gone, now)
	return p
}

func noteClaim(c claim, o *karpv1.NodeClaim, now time.Time, gone bool) claim {
	c.name, c.pool, c.node = o.Name, o.Labels[karpv1.NodePoolLabelKey], o.Status.NodeName
	// Karpenter sets these when the machine is launched.
	c.launched = o.Status.ProviderID != ""
	c.instanceType, c.zone = o.Labels[corev1.LabelInstanceTypeStable], o.Labels[corev1.LabelTopologyZone]
	c.capacityType = o.Labels[karpv1.CapacityTypeLabelKey]
	first(&c.seen, true, now)
	first(&c.gone, gone, now)
	return c
}

func (w *watcher) noteNode(n node, o *corev1.Node, now time.Time, gone bool) node {
	n.name, n.pool = o.Name, o.Labels[karpv1.NodePoolLabelKey]
	n.ready = o.Labels[karpv1.NodeRegisteredLabelKey] == "true" && slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	replicas := o.Status.Allocatable[w.resource]
	n.replicas = replicas.Value()
	first(&n.seen, true, now)
	first(&n.gone, gone, now)
	return n
}

// first sets when to now if the condition holds for the first time.
func first(when *time.Time, is bool, now time.Time) {
	if is && when.IsZero() {
		*when = now
	}
}

// all returns a copy of everything that ever existed, sorted by name.
func (w *watcher) all() seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s seen
	for _, p := range w.pods {
		s.pods = append(s.pods, p)
	}
	for _, c := range w.claims {
		s.claims = append(s.claims, c)
	}
	published := facts.PublishedOf(slices.Collect(maps.Values(w.slices)), nil)
	for _, n := range w.nodes {
		n.replicas += published[facts.Offer{Node: n.name, Driver: nodecontract.DRADriver, Resource: nodecontract.ResourceGPUShared}].Replicas
		s.nodes = append(s.nodes, n)
	}
	slices.SortFunc(s.pods, func(a, b pod) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(s.claims, func(a, b claim) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(s.nodes, func(a, b node) int { return strings.Compare(a.name, b.name) })
	return s
}

// patience is the timeout of each wait. On an otherwise idle machine no wait takes half a minute.
const patience = 2 * time.Minute

// until waits until is reports done. Otherwise is returns the progress, which becomes part of the error after a timeout.
func (w *watcher) until(ctx context.Context, is func(seen) (done bool, sofar string)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Some conditions depend on time.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		done, sofar := is(w.all())
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return fmt.Errorf("after %s %s", patience, sofar)
		}
	}
}

// of returns what belongs to a NodePool, and the pods of an app.
func (s seen) of(pool, app string) seen {
	return seen{
		pods:   keep(s.pods, func(p pod) bool { return p.app == app }),
		claims: keep(s.claims, func(c claim) bool { return c.pool == pool }),
		nodes:  keep(s.nodes, func(n node) bool { return n.pool == pool }),
	}
}

// present returns what still exists.
func (s seen) present() seen {
	return seen{
		pods:   keep(s.pods, func(p pod) bool { return p.gone.IsZero() }),
		claims: keep(s.claims, func(c claim) bool { return c.gone.IsZero() }),
		nodes:  keep(s.nodes, func(n node) bool { return n.gone.IsZero() }),
	}
}

func keep[T any](all []T, is func(T) bool) []T {
	var kept []T
	for _, one := range all {
		if is(one) {
			kept = append(kept, one)
		}
	}
	return kept
}

func count[T any](all []T, is func(T) bool) int { return len(keep(all, is)) }

func latest[T any](all []T, when func(T) time.Time) time.Time {
	var last time.Time
	for _, one := range all {
		if t := when(one); t.After(last) {
			last = t
		}
	}
	return last
}
