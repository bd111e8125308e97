// Package gather reads the cluster for the controllers. It writes nothing.
//
// An index holds the kinds with many objects. It follows the informers object by object (follow.go). The other kinds are listed again after one of
// their objects has changed (state.go, changes.go). NodeClaims that were just written are read from the API server until the informer shows them
// (writes.go), and so are the cloud's node classes (look.go).
package gather

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/fleet/capacity"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/watchdog"
)

// Gatherer reads the cluster. It is safe for concurrent use.
type Gatherer struct {
	Kinds

	// Cached reads from the informers' caches, including unstructured objects.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
	// Mapper knows which kinds the API server serves.
	Mapper  meta.RESTMapper
	Catalog cloud.Catalog
	Ledger  *launching.Ledger
	Clock   clock.PassiveClock
	// Metrics may be nil.
	Metrics *metrics.Metrics
	// ReplicasTimeout is how long a registered node may have no replicas.
	ReplicasTimeout time.Duration
	// PriorityCutoff is the lowest priority of pods for which machines are launched. It is nil if they are launched for all.
	PriorityCutoff *int32
	// Prices returns the rules for prices. It is nil if there are none.
	Prices func() []prices.Rule
	// Watchdog bounds how long a read takes, and has the objects to leave out. It may be nil.
	Watchdog *watchdog.Watchdog

	// claims is held for reading while NodeClaims are read, and exclusively while several are written together. written has those that the informer may
	// not show yet.
	claims  sync.RWMutex
	written writes

	// looking is locked while the cluster is read. It guards the rest.
	looking sync.Mutex
	state   state
	// changes counts the changes in the caches, and followed has the objects that have changed. They are nil if the caches are not followed.
	changes  changes
	followed *followed
	// index has the objects that were followed so far.
	index *facts.Index
	// published has the replicas that agents publish as DRA drivers, as last read.
	published facts.Published
	// unpublished are nodes whose published replicas are not in the index yet.
	unpublished []string
	// visit reports the object that a read works at. It is nil if nobody asks.
	visit watchdog.Visit
	// claiming has the pods with ResourceClaims.
	claiming claiming
	// nodeClasses has the cloud's node classes as last read.
	nodeClasses nodeClasses
	// learned has the capacities that machines have shown since the controller started.
	learned capacity.Learned
	// aside has the objects that are set aside.
	aside aside
	// requests are the ProvisioningRequests as last read.
	requests []provreq.Request
	// generation counts the reads that differ from the previous one, and since is when the last of them began. fresh has the differences.
	generation uint64
	since      time.Time
	fresh      fresh
}

// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses;gpuimagerollouts,verbs=list;watch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodepools;nodeoverlays,verbs=list;watch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods;nodes;namespaces;persistentvolumeclaims;persistentvolumes,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses;csinodes,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=list;watch
// +kubebuilder:rbac:feature=capacity-buffers,groups=autoscaling.x-k8s.io,resources=capacitybuffers,verbs=list;watch
// +kubebuilder:rbac:feature=capacity-buffers,groups=apps,resources=deployments;replicasets;statefulsets,verbs=list;watch
// +kubebuilder:rbac:feature=capacity-buffers,groups="",resources=podtemplates,verbs=list;watch
// +kubebuilder:rbac:feature=provisioning-requests,groups=autoscaling.x-k8s.io,resources=provisioningrequests,verbs=list;watch
// +kubebuilder:rbac:feature=provisioning-requests,groups="",resources=podtemplates,verbs=list;watch

// read returns the cluster without the time and the refusals. It records in g.fresh what differs from the last successful read.
func (g *Gatherer) read(ctx context.Context) (*facts.Cluster, error) {
	var all lists
	var listed error
	var group sync.WaitGroup
	if g.followed == nil {
		group.Go(func() { all, listed = g.list(ctx) })
	}
	updated := g.update(ctx)
	group.Wait()
	if err := errors.Join(updated, listed); err != nil {
		return nil, err
	}
	g.beginAside()
	s := &g.state
	c := &facts.Cluster{
		NodePools: s.nodePools.is.Items, GPUNodeClasses: s.classes.is.Items, DaemonSets: s.daemonSets.is.Items, ReplicasTimeout: g.ReplicasTimeout, PriorityCutoff: g.PriorityCutoff,
		Namespaces: s.namespaces.is.Items, StorageClasses: s.storage.is.Items, UnknownFields: s.unknown.is, PodGroups: g.podGroups(),
	}
	published, err := g.readDRA(ctx)
	if err != nil {
		return nil, err
	}
	g.unpublished = append(g.unpublished, published...)
	c.DRA = facts.DRA{Known: g.DRA || g.NoDRA, Enabled: g.DRA, Classes: s.deviceClasses.is.Items, TaintRules: s.taintRules.is.Items}
	if err := g.objects(ctx, c, &all); err != nil {
		return nil, err
	}
	for _, overlay := range s.overlays.is.Items {
		if g.NodeOverlays && facts.Condition(overlay.Status.Conditions, status.ConditionReady).IsTrue() {
			c.NodeOverlays = append(c.NodeOverlays, overlay)
		}
	}
	if g.CapacityBuffers {
		g.fresh.kinds = true // Their changes are not tracked.
		var err error
		if c.Buffers, c.OddBuffers, err = karpenter.Buffers(ctx, g.Cached); g.unlessOptional(err) != nil {
			return nil, err
		}
	}
	if g.ProvisioningRequests {
		var err error
		if c.Requests, err = provreq.List(ctx, g.Cached); g.unlessOptional(err) != nil {
			return nil, err
		}
		g.fresh.kinds = g.fresh.kinds || !reflect.DeepEqual(g.requests, c.Requests)
		g.requests = c.Requests
	}
	g.leaveOut(c)
	return c, g.classes(ctx, c)
}

// fresh records the differences to the last successful read that can affect decisions.
type fresh struct {
	// kinds reports whether kinds with few objects differ, and classes whether the cloud's node classes do.
	kinds, classes bool
	objects        facts.Difference
}

func (f fresh) any() bool { return f.kinds || f.classes || f.objects.Any() }

// objects sets the objects of the kinds with many objects: those that were listed, or what informers have.
func (g *Gatherer) objects(ctx context.Context, c *facts.Cluster, listed *lists) error {
	g.claims.RLock()
	defer g.claims.RUnlock()
	if g.followed == nil {
		g.fresh.objects = facts.Difference{Machines: true, Others: true}
		g.use(c, listed)
		return nil
	}
	if g.index == nil {
		if err := g.former(ctx); err != nil {
			return err
		}
	}
	unseen, err := g.unseen(ctx)
	if err != nil {
		return err
	}
	changes, full := g.followed.take()
	g.withAside(changes)
	g.withPublished(changes, g.unpublished)
	g.unpublished = nil
	g.withClaims(changes, full)
	before := g.index
	if full {
		before = nil
	}
	index, d := before.With(changes)
	d.Machines = d.Machines || full || g.fresh.objects.Machines
	d.Others = d.Others || g.fresh.objects.Others
	if len(unseen) > 0 {
		var more facts.Difference
		written := facts.Changes{NodeClaims: unseen}
		g.withAside(written)
		index, more = index.With(written)
		d.Machines = d.Machines || more.Machines
		for name := range unseen {
			g.followed.nodeClaims.note(client.ObjectKey{Name: name}) // The next read takes it from the informer again.
		}
	}
	g.index, c.Index, g.fresh.objects = index, index, d
	return nil
}

// lists are all objects of the kinds with many objects.
type lists struct {
	pods         corev1.PodList
	nodes        corev1.NodeList
	volumeClaims corev1.PersistentVolumeClaimList
	volumes      corev1.PersistentVolumeList
	csiNodes     storagev1.CSINodeList
	nodeClaims   karpv1.NodeClaimList
}

// list lists all objects of the kinds with many objects.
func (g *Gatherer) list(ctx context.Context) (lists, error) {
	g.claims.RLock()
	defer g.claims.RUnlock()
	var l lists
	errs := make([]error, 6)
	var group sync.WaitGroup
	list := func(i int, from client.Reader, all client.ObjectList) {
		group.Go(func() {
			if err := List(ctx, from, all); err != nil {
				errs[i] = fmt.Errorf("listing %T: %w", all, err)
			}
		})
	}
	for i, all := range []client.ObjectList{&l.pods, &l.nodes, &l.volumeClaims, &l.volumes, &l.csiNodes} {
		list(i, g.Cached, all)
	}
	list(len(errs)-1, g.Live, &l.nodeClaims)
	group.Wait()
	return l, errors.Join(errs...)
}

// use sets the objects that were listed.
func (g *Gatherer) use(c *facts.Cluster, l *lists) {
	c.Pods, c.PersistentVolumeClaims, c.PersistentVolumes, c.CSINodes = l.pods.Items, l.volumeClaims.Items, l.volumes.Items, l.csiNodes.Items
	if g.DRA {
		c.Pods = slices.Clone(c.Pods)
		g.claimed(c.Pods)
	}
	c.Nodes, c.NodeClaims = slices.Clone(l.nodes.Items), l.nodeClaims.Items // Others may share the list.
	for i := range c.Nodes {
		c.Nodes[i] = *g.published.On(&c.Nodes[i])
	}
	c.Pods, c.Nodes = replaced(g, "Pod", c.Pods, facts.SetAside), replaced(g, "Node", c.Nodes, facts.SetAsideNode)
	c.NodeClaims = replaced(g, "NodeClaim", c.NodeClaims, facts.SetAsideClaim)
}

// nodeClasses has the cloud's node classes to which GPUNodeClasses refer.
type nodeClasses struct {
	// at is when the last read of all of them ended, and read is its result. accepted also has the images of paused rollouts, and used also the capacities
	// that machines have shown, and the prices of book.
	at                   time.Time
	read, accepted, used map[v1alpha1.NodeClassReference]facts.NodeClassState
	rules                []prices.Rule
	book                 *prices.Book
}

// classesAtOnce is how many node classes are read concurrently.
const classesAtOnce = 16

// classTimeout is how long one node class may take to be read. A conversion webhook that does not answer must not delay the pools of other classes.
const classTimeout = 10 * time.Second

// classes sets the node classes to which the GPUNodeClasses refer. If the caches are followed, it reuses the last result for two seconds. The time
// starts when the read has ended, so that a slow API server does not cause a read for every caller.
func (g *Gatherer) classes(ctx context.Context, c *facts.Cluster) error {
	now, n := g.Clock.Now(), &g.nodeClasses
	kept := g.followed != nil && now.Sub(n.at) <= recent
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
	workqueue.ParallelizeUntil(ctx, classesAtOnce, len(unread), func(i int) { states[i], errs[i] = g.NodeClass(ctx, unread[i]) })
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
		drift.AcceptGoodImages(known, g.state.rollouts.is.Items)
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

// Together calls a function that writes several NodeClaims. Readers of the cluster see either all of its writes or none. The function must not read the
// cluster.
func (g *Gatherer) Together(write func()) {
	g.claims.Lock()
	defer g.claims.Unlock()
	write()
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
