// Package gather reads the cluster for the controllers. It writes nothing.
//
// It keeps what it read from the informers (state.go), and lists a kind again only after one of its objects has changed (changes.go). It reads NodeClaims and
// the cloud's node classes from the API server each time. Controllers that ask at the same time share the result (look.go).
package gather

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/fleet/capacity"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
)

// Gatherer reads the cluster. It is safe for concurrent use.
type Gatherer struct {
	// Cached reads from the informers' caches, including unstructured objects.
	Cached client.Reader
	// Live reads from the API server. NodeClaims are always read from it: if a NodeClaim that was just created were missed, its pods would get a second machine.
	Live client.Reader
	// Mapper tells which kinds the API server serves.
	Mapper  meta.RESTMapper
	Catalog cloud.Catalog
	Ledger  *launch.Ledger
	Clock   clock.PassiveClock
	// Metrics may be nil.
	Metrics *metrics.Metrics
	// ReplicasTimeout is how long a registered node may have no replicas.
	ReplicasTimeout time.Duration
	// NodeOverlays reports whether the API server serves NodeOverlays.
	NodeOverlays bool
	// CapacityBuffers reports whether the API server serves CapacityBuffers.
	CapacityBuffers bool
	// ImageRollouts reports whether to read GPUImageRollouts, which affect the drift of machines.
	ImageRollouts bool

	// claims is locked while all NodeClaims are read, and while several are written together.
	claims sync.RWMutex

	// looking is locked while the cluster is read. It guards state, learned and generation. Learned are the capacities that machines have shown since the
	// controller started. The generation counts the reads.
	looking    sync.Mutex
	state      state
	learned    capacity.Learned
	generation uint64
	// changes counts the changes in the caches. It is nil if they are not counted.
	changes changes

	// mu guards next, which has not begun, and latest, which is the last one without an error.
	mu           sync.Mutex
	next, latest *look
}

// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses;gpuimagerollouts,verbs=list;watch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodepools;nodeclaims;nodeoverlays,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=pods;nodes;namespaces;persistentvolumeclaims;persistentvolumes,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses;csinodes,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=list;watch
// +kubebuilder:rbac:feature=capacity-buffers,groups=autoscaling.x-k8s.io,resources=capacitybuffers,verbs=list;watch
// +kubebuilder:rbac:feature=capacity-buffers,groups=apps,resources=deployments;replicasets;statefulsets,verbs=list;watch
// +kubebuilder:rbac:feature=capacity-buffers,groups="",resources=podtemplates,verbs=list;watch

func (g *Gatherer) read(ctx context.Context) (*snapshot.Cluster, error) {
	if err := g.update(ctx); err != nil {
		return nil, err
	}
	var claims karpv1.NodeClaimList
	if err := g.list(ctx, &claims); err != nil {
		return nil, err
	}
	s := &g.state
	c := &snapshot.Cluster{
		Now: g.Clock.Now(), NodePools: s.nodePools.is.Items, GPUNodeClasses: s.classes.is.Items, NodeClaims: claims.Items, Nodes: s.nodes.is.Items,
		Pods: s.pods.is.Items, DaemonSets: s.daemonSets.is.Items, ReplicasTimeout: g.ReplicasTimeout,
		NodeClasses: map[v1alpha1.NodeClassReference]snapshot.NodeClassState{}, Namespaces: s.namespaces.is.Items, PersistentVolumes: s.volumes.is.Items,
		PersistentVolumeClaims: s.claims.is.Items, StorageClasses: s.storage.is.Items, CSINodes: s.csiNodes.is.Items, UnknownFields: s.unknown.is,
	}
	for _, overlay := range s.overlays.is.Items {
		if g.NodeOverlays && snapshot.Condition(overlay.Status.Conditions, status.ConditionReady).IsTrue() {
			c.NodeOverlays = append(c.NodeOverlays, overlay)
		}
	}
	if g.CapacityBuffers {
		var err error
		if c.Buffers, err = karpenter.Buffers(ctx, g.Cached); err != nil {
			return nil, err
		}
	}
	if err := g.classes(ctx, c); err != nil {
		return nil, err
	}
	c.Index = c.Indexed() // All controllers that share the cluster share its index.
	drift.AcceptGoodImages(c, s.rollouts.is.Items)
	g.learn(ctx, c).Correct(c)
	return c, nil
}

// classes reads the node classes that the GPUNodeClasses refer to.
func (g *Gatherer) classes(ctx context.Context, c *snapshot.Cluster) error {
	for i := range c.GPUNodeClasses {
		class := &c.GPUNodeClasses[i]
		g.Ledger.Learn(class.Name, class.Status.RefusedOfferings, c.Now)
		if _, ok := c.NodeClasses[class.Spec.NodeClassRef]; ok {
			continue
		}
		state, err := g.NodeClass(ctx, class.Spec.NodeClassRef)
		if err != nil {
			return err
		}
		c.NodeClasses[class.Spec.NodeClassRef] = state
	}
	return nil
}

// list reads the NodeClaims.
func (g *Gatherer) list(ctx context.Context, claims *karpv1.NodeClaimList) error {
	g.claims.RLock()
	defer g.claims.RUnlock()
	if err := g.Live.List(ctx, claims); err != nil {
		return fmt.Errorf("listing NodeClaims: %w", err)
	}
	return nil
}

// Together calls a function that writes several NodeClaims. Readers of the cluster see either all of its writes or none. The function must not read the
// cluster.
func (g *Gatherer) Together(write func()) {
	g.claims.Lock()
	defer g.claims.Unlock()
	write()
}

// learn adds what the existing machines show to the known capacities.
func (g *Gatherer) learn(ctx context.Context, c *snapshot.Cluster) capacity.Learned {
	now := capacity.Learn(c, g.learned)
	for kind, seen := range now {
		if before, ok := g.learned[kind]; !ok || before.Allocatable != seen.Allocatable {
			log.FromContext(ctx).V(1).Info("A machine shows what its kind has for pods", "instanceType", kind.InstanceType, "nodeClass", kind.NodeClass.Name,
				"image", kind.Image, "memoryBytes", seen.MemoryBytes, "allocatable", seen.Allocatable)
		}
	}
	g.learned = now
	return now
}

// NodeClass reads the state of one of the cloud's node classes from the API server, because a cached one may be wrong: a class that was just changed is not
// Ready until Karpenter has reconciled it, and Karpenter deletes NodeClaims that refer to such a class.
func (g *Gatherer) NodeClass(ctx context.Context, ref v1alpha1.NodeClassReference) (snapshot.NodeClassState, error) {
	mapping, err := g.Mapper.RESTMapping(schema.GroupKind{Group: ref.Group, Kind: ref.Kind})
	if meta.IsNoMatchError(err) {
		return snapshot.NodeClassState{Reason: "NodeClassKindUnknown", Message: fmt.Sprintf(
			"this cluster has no kind %s in group %s: install Karpenter's provider for it, or correct spec.nodeClassRef", ref.Kind, ref.Group)}, nil
	}
	if err != nil {
		return snapshot.NodeClassState{}, fmt.Errorf("looking up kind %s: %w", ref.Kind, err)
	}
	class := &unstructured.Unstructured{}
	class.SetGroupVersionKind(mapping.GroupVersionKind)
	err = g.Live.Get(ctx, client.ObjectKey{Name: ref.Name}, class)
	switch {
	case apierrors.IsNotFound(err):
		return snapshot.NodeClassState{Reason: "NodeClassNotFound", Message: fmt.Sprintf(
			"%s %q does not exist: create it, or name another in spec.nodeClassRef", ref.Kind, ref.Name)}, nil
	case apierrors.IsForbidden(err):
		return snapshot.NodeClassState{Reason: "NodeClassForbidden", Message: fmt.Sprintf(
			"the controller may not read %s %q: allow it get on that kind", ref.Kind, ref.Name)}, nil
	case ctx.Err() != nil:
		return snapshot.NodeClassState{}, ctx.Err()
	case err != nil:
		// One class that cannot be read, for instance because its conversion webhook is down, must not stop the pools of the others.
		return snapshot.NodeClassState{Reason: "NodeClassUnreadable", Message: fmt.Sprintf("%s %q cannot be read: %v", ref.Kind, ref.Name, err)}, nil
	}
	state := snapshot.NodeClassStateOf(class)
	state.Learn(g.Catalog.InstanceTypes(ctx, class))
	return state, nil
}
