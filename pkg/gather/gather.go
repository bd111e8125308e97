// Package gather reads the cluster for the controllers. It writes nothing.
//
// An index holds the kinds with many objects. It follows the informers object by object (follow.go). The other kinds are listed again after one of
// their objects has changed (relist.go). NodeClaims that were just written are read from the API server until the informer shows them (unseen.go), and so
// are the cloud's node classes (nodeclasses.go).
package gather

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/watchdog"
)

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
		NodePools: s.nodePools.value.Items, GPUNodeClasses: s.classes.value.Items, DaemonSets: s.daemonSets.value.Items, ReplicasTimeout: g.ReplicasTimeout, PriorityCutoff: g.PriorityCutoff,
		Namespaces: s.namespaces.value.Items, StorageClasses: s.storage.value.Items, UnknownFields: s.unknown.value, PodGroups: g.podGroups(),
	}
	published, err := g.readDRA(ctx)
	if err != nil {
		return nil, err
	}
	g.unpublished = append(g.unpublished, published...)
	c.DRA = facts.DRA{Known: g.DRA || g.NoDRA, Enabled: g.DRA, Classes: s.deviceClasses.value.Items, TaintRules: s.taintRules.value.Items}
	if err := g.setObjects(ctx, c, &all); err != nil {
		return nil, err
	}
	for _, overlay := range s.overlays.value.Items {
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
	return c, g.setNodeClasses(ctx, c)
}

// setObjects sets the objects of the kinds with many objects: those that were listed, or what informers have.
func (g *Gatherer) setObjects(ctx context.Context, c *facts.Cluster, listed *lists) error {
	g.claims.RLock()
	defer g.claims.RUnlock()
	if g.followed == nil {
		g.fresh.objects = facts.Difference{Machines: true, Others: true}
		g.useListed(c, listed)
		return nil
	}
	if g.index == nil {
		if err := g.listFormerWrites(ctx); err != nil {
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

// useListed sets the objects that were listed.
func (g *Gatherer) useListed(c *facts.Cluster, l *lists) {
	c.Pods, c.PersistentVolumeClaims, c.PersistentVolumes, c.CSINodes = l.pods.Items, l.volumeClaims.Items, l.volumes.Items, l.csiNodes.Items
	if g.DRA {
		c.Pods = slices.Clone(c.Pods)
		g.useClaims(c.Pods)
	}
	c.Nodes, c.NodeClaims = slices.Clone(l.nodes.Items), l.nodeClaims.Items // Others may share the list.
	for i := range c.Nodes {
		c.Nodes[i] = *g.published.On(&c.Nodes[i])
	}
	c.Pods, c.Nodes = replaced(g, "Pod", c.Pods, facts.SetAside), replaced(g, "Node", c.Nodes, facts.SetAsideNode)
	c.NodeClaims = replaced(g, "NodeClaim", c.NodeClaims, facts.SetAsideClaim)
}

// Cluster reads everything on which decisions depend. The read begins after the call, so it includes everything that the caller has seen in the caches,
// and all NodeClaims that were written. Callers share the objects and must not change them.
func (g *Gatherer) Cluster(ctx context.Context) (*facts.Cluster, error) {
	if err := g.Watchdog.Load(ctx); err != nil {
		return nil, err
	}
	g.looking.Lock()
	defer g.looking.Unlock()
	began := g.Clock.Now()
	var c *facts.Cluster
	err := g.Watchdog.Run(ctx, watchdog.Gather, func(ctx context.Context, visit watchdog.Visit) (err error) {
		g.visit = visit
		c, err = g.read(ctx)
		return err
	})
	if over := (&watchdog.OverrunError{}); errors.As(err, &over) {
		g.readAllAgain() // What has changed was read only in part.
	}
	if err != nil {
		return nil, err
	}
	if g.fresh.any() || g.Clock.Since(g.since) > reuseTime {
		g.generation++
		g.since, g.fresh = began, fresh{}
	}
	if g.Metrics != nil {
		g.Metrics.GatherSeconds.Observe(g.Clock.Since(began).Seconds())
	}
	c.Generation, c.Now, c.Refused = g.generation, g.Clock.Now(), g.Ledger.Refused()
	return c, nil
}
