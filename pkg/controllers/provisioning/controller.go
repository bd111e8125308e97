// Package provisioning launches machines for pods that wait for replicas.
package provisioning

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/gather"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// retry is how long waiting pods wait before they are looked at again when nothing else wakes the controller.
const retry = 10 * time.Second

// Config is what the controller needs.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Ledger   *launch.Ledger
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// BatchIdle and BatchMax bound how long waiting pods are gathered before they are planned for.
	BatchIdle, BatchMax time.Duration
	// MaxUnlaunched is how many claims may be without a machine at once, so that one that hangs is seen before many are made.
	MaxUnlaunched int
	// PlanBudget is how long a better plan is looked for; the best one found until then is taken.
	PlanBudget time.Duration
}

// Controller plans for all waiting pods together, so it has one request and one worker.
type Controller struct {
	Config
	batch *batch
	// pending says that pods wait, so that a change elsewhere is worth a look.
	pending atomic.Bool
	// told are the refusals that waiting pods have been told, so that an event marks a change.
	told map[types.UID]planner.Reason
}

// New makes the controller.
func New(config Config) *Controller {
	return &Controller{Config: config, batch: newBatch(config.BatchIdle, config.BatchMax), told: map[types.UID]planner.Reason{}}
}

// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=create
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	whenPending := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		if !c.pending.Load() {
			return nil
		}
		return []reconcile.Request{{}}
	})
	return ctrl.NewControllerManagedBy(m).Named("provisioning").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.batchPod)).
		Watches(&karpv1.NodeClaim{}, whenPending).
		Watches(&karpv1.NodePool{}, whenPending).
		Watches(&v1alpha1.GPUNodeClass{}, whenPending).
		Watches(&corev1.PersistentVolumeClaim{}, whenPending).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// batchPod adds a pod that waits for replicas to the batch.
func (c *Controller) batchPod(_ context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok || !snapshot.Waits(pod) {
		return nil
	}
	c.batch.add(pod.UID, c.Clock.Now())
	return []reconcile.Request{{}}
}

// Reconcile plans once the batch is complete, checks the plan, creates the claims, and tells the pods that got no place why.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if wait := c.batch.due(c.Clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the cluster: %w", err)
	}
	view := snapshot.Build(cluster)
	c.remember(view)
	if len(view.Pods) == 0 {
		c.Metrics.Planned(planner.Plan{})
		return reconcile.Result{}, nil
	}
	started := c.Clock.Now()
	plan := planner.Search{Stop: func() bool { return c.Clock.Since(started) >= c.PlanBudget }}.Build(view.Snapshot)
	c.Metrics.PlanSeconds.Observe(c.Clock.Since(started).Seconds())
	if err := planner.Check(view.Snapshot, plan); err != nil {
		// A bug of ours. The same snapshot would give the same plan, so this waits for another one, and not for a person.
		c.Metrics.PlansRejected.Inc()
		log.FromContext(ctx).Error(err, "Threw a plan away that breaks its own rules")
		return reconcile.Result{RequeueAfter: retry}, nil
	}
	c.Metrics.Planned(plan)
	log.FromContext(ctx).V(1).Info("Planned", "pods", len(view.Pods), "launches", len(plan.Launches), "placements", len(plan.Placements),
		"unplaced", len(plan.Unplaced), "microUSDPerHour", plan.Price, "bound", plan.Bound)
	wait, err := c.act(ctx, &view, plan)
	c.tell(&view, plan)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// remember notes which pods wait.
func (c *Controller) remember(view snapshot.View) {
	waiting := sets.New[types.UID]()
	for _, pod := range view.Pods {
		waiting.Insert(pod.UID)
	}
	c.pending.Store(waiting.Len() > 0)
	c.Metrics.PodsWaiting.Set(float64(waiting.Len()))
	c.batch.keep(waiting)
	for uid := range c.told {
		if !waiting.Has(uid) {
			delete(c.told, uid)
		}
	}
}
