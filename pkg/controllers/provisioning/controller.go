// Package provisioning launches machines for pods that wait for replicas.
package provisioning

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// soon is the delay of a plan while the launch controller records why a NodeClaim is gone.
const soon = 50 * time.Millisecond

// Config has the dependencies and settings of the controller.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Planner  *planning.Planner
	Ledger   *launching.Ledger
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// BatchIdle and BatchMax limit how long pending pods are gathered before a plan is made.
	BatchIdle, BatchMax time.Duration
	// MaxUnlaunched is the upper limit of [launching.Window], the number of NodeClaims that may be unlaunched at the same time.
	MaxUnlaunched int
	// CapacityBuffers reports whether the API server serves CapacityBuffers.
	CapacityBuffers bool
	// Nominations reports whether to withdraw nominations that plans do not use.
	Nominations bool
}

// Controller plans for all pending pods together, so it has one request and one worker.
type Controller struct {
	Config
	batch *batch
	// arrived has the events that the next plan is for.
	arrived metrics.Arrivals
	// pending reports whether pods need capacity or headroom is kept, so that other changes trigger a plan.
	pending atomic.Bool
	// reported has the latest events about pending pods, and events limits their rate.
	reported map[types.UID]report
	// groups has the latest events about PodGroups without a place.
	groups map[types.UID]report
	// odd has the CapacityBuffers with an event that no capacity is kept free for them.
	odd    map[karpenter.OddBuffer]bool
	events *rate.Limiter
	// withdrawn has the nominations that were withdrawn.
	withdrawn withdrawals
	nominator *readiness.Nominator
	// woken has the pods that plans place on nodes with backend DRA but the scheduler does not bind.
	woken wakes
	// seats has the pending pods that have had a machine, which wait for a place before another one is launched.
	seats seats
	// rests is when the next plan may be made that nothing is urgent for.
	rests time.Time
}

// New returns a new controller.
func New(config Config) *Controller {
	c := &Controller{
		Config: config, batch: newBatch(config.BatchIdle, config.BatchMax), reported: map[types.UID]report{}, events: rate.NewLimiter(eventsPerSecond, eventsAtOnce), withdrawn: withdrawals{},
		nominator: readiness.NewNominator(config.Client, config.Metrics),
	}
	c.pending.Store(true) // The first plan sets it.
	c.batch.hurry()       // The pods that wait at the start arrived long ago.
	return c
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=patch
// +kubebuilder:rbac:feature=nominations,groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=create;patch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	whenPending := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		if !c.pending.Load() {
			return nil
		}
		return []reconcile.Request{{}}
	})
	atOnce := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		c.arrived.Came(metrics.Leaving, c.Clock.Now())
		if !patient(o) {
			c.batch.hurry()
		}
		return []reconcile.Request{{}}
	})
	b := ctrl.NewControllerManagedBy(m).Named("provisioning").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.BatchPod)).
		Watches(&corev1.Pod{}, handler.Funcs{UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			c.PodChanged(ctx, e.ObjectOld, e.ObjectNew)
		}}).
		Watches(&karpv1.NodeClaim{}, whenPending).
		Watches(&karpv1.NodeClaim{}, atOnce, builder.WithPredicates(predicate.Funcs{
			CreateFunc:  func(e event.CreateEvent) bool { return leaving(e.Object) },
			UpdateFunc:  func(e event.UpdateEvent) bool { return leaving(e.ObjectNew) && !leaving(e.ObjectOld) },
			DeleteFunc:  func(e event.DeleteEvent) bool { return !leaving(e.Object) },
			GenericFunc: func(event.GenericEvent) bool { return false },
		})).
		Watches(&karpv1.NodePool{}, whenPending).
		Watches(&v1alpha1.GPUNodeClass{}, handler.EnqueueRequestsFromMapFunc(c.classChanged)).
		Watches(&corev1.PersistentVolumeClaim{}, whenPending)
	if c.CapacityBuffers {
		b = b.Watches(karpenter.NewCapacityBuffer(), always)
	}
	for _, kind := range c.Gatherer.PodGroups { // Pods may have waited for it.
		b = b.Watches(gather.NewPodGroup(kind), always,
			builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return podGroupChanged(e.ObjectOld, e.ObjectNew) }}))
	}
	if c.Gatherer.ProvisioningRequests {
		b = b.Watches(provreq.New(), always).Watches(&corev1.PodTemplate{}, always)
	}
	if c.Gatherer.DRA {
		b = b.Watches(&resourcev1.ResourceClaim{}, whenPending).Watches(&resourcev1.ResourceClaimTemplate{}, always) // Pods may have waited for a template.
	}
	return b.WithOptions(controller.Options{MaxConcurrentReconciles: 1}).Complete(c)
}

// podGroupChanged reports whether a change of a PodGroup can affect plans.
func podGroupChanged(before, after client.Object) bool {
	was, ok := before.(*unstructured.Unstructured)
	is, also := after.(*unstructured.Unstructured)
	return ok && also && facts.PodGroupOf(was) != facts.PodGroupOf(is)
}

// classChanged triggers a plan if a GPUNodeClass has headroom, or if it changes while pods are pending.
func (c *Controller) classChanged(_ context.Context, o client.Object) []reconcile.Request {
	if class, ok := o.(*v1alpha1.GPUNodeClass); !c.pending.Load() && (!ok || len(class.Spec.Headroom) == 0) {
		return nil
	}
	return []reconcile.Request{{}}
}

// leaving reports whether the machine of one of Karve's NodeClaims is leaving or was refused. Its pods need other capacity before they become pending,
// and immediately, because the cloud gives two minutes of notice before it interrupts a machine.
func leaving(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && facts.IsOurClaim(claim) && (&records.Machine{Claim: claim}).Leaving()
}

// BatchPod adds a pod that waits for replicas to the batch, and removes one that no longer waits. Pods that the scheduler has not tried yet only keep a batch
// open. It handles each change of a pod.
func (c *Controller) BatchPod(_ context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	// Whether a ResourceClaim is for a GPU is known only after the cluster is read.
	claims := c.Gatherer.DRA && len(pod.Spec.ResourceClaims) > 0 && karpenter.IsProvisionable(pod)
	if !facts.Waits(pod) && !claims || pod.DeletionTimestamp != nil {
		if c.Planner != nil && c.Planner.ReadAhead != nil && facts.Untried(pod) {
			c.batch.extend(pod.UID, c.Clock.Now())
		} else {
			c.batch.drop(pod.UID)
		}
		return nil
	}
	c.batch.add(pod.UID, c.Clock.Now())
	return []reconcile.Request{{}}
}

// PodChanged records what the scheduler has done to a pod. It handles each update of a pod.
func (c *Controller) PodChanged(ctx context.Context, before, after client.Object) {
	was, ok := before.(*corev1.Pod)
	pod, is := after.(*corev1.Pod)
	if !ok || !is {
		return
	}
	if c.Planner != nil && c.Planner.ReadAhead != nil {
		c.Planner.ReadAhead.Saw(was, pod, c.Clock.Now())
	}
	c.measureWait(ctx, was, pod)
}

// measureWait records how long a pod has waited when a change binds it to one of Karve's nodes.
func (c *Controller) measureWait(ctx context.Context, was, pod *corev1.Pod) {
	if !facts.Bound(was, pod) {
		return
	}
	var node corev1.Node
	if err := c.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node); err != nil || node.Labels[v1alpha1.GPUNodeClassLabel] == "" {
		return // The node is gone or not Karve's.
	}
	c.Metrics.PodsWait.WithLabelValues(node.Labels[karpv1.NodePoolLabelKey]).Observe(c.Clock.Since(pod.CreationTimestamp.Time).Seconds())
}
