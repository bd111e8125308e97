// Package disruption gives machines back that hold no pods. A machine goes in small steps that can each be undone but the last: it is marked idle, then tainted,
// then watched, then looked at live, and only then is its NodeClaim deleted.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
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
	"karve.sh/karve/pkg/controllers/gather"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// soon is when to look again at a Node that somebody else has changed meanwhile.
const soon = time.Second

// Config is what the controller needs.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.Clock
	// Settle is how long a tainted node is watched before it is given back, so that a pod bound at the last moment is seen.
	Settle time.Duration
}

// Controller looks at all machines together, since budgets speak of all.
type Controller struct {
	Config
	// told are the reasons why idle machines stay, so that an event marks a change.
	told map[types.UID]string
}

// New makes the controller.
func New(config Config) *Controller {
	return &Controller{Config: config, told: map[types.UID]string{}}
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	return ctrl.NewControllerManagedBy(m).Named("disruption").
		Watches(&corev1.Pod{}, one, builder.WithPredicates(podLeftOrCame())).
		Watches(&corev1.Node{}, one, builder.WithPredicates(ours())).
		Watches(&karpv1.NodePool{}, one).
		Watches(&v1alpha1.GPUNodeClass{}, one, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// podLeftOrCame lets through what can make a node idle or busy.
func podLeftOrCame() predicate.Predicate {
	bound := func(o client.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && pod.Spec.NodeName != "" && !karpenter.IsDaemon(pod)
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return bound(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return bound(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*corev1.Pod)
			after, okAfter := e.ObjectNew.(*corev1.Pod)
			return okBefore && okAfter && bound(after) &&
				(before.Spec.NodeName != after.Spec.NodeName || karpenter.IsTerminal(before) != karpenter.IsTerminal(after))
		},
	}
}

func ours() predicate.Predicate {
	return predicate.And(
		predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.GPUNodeClassLabel] != "" }),
		predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}, taintsChanged()),
	)
}

func taintsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*corev1.Node)
		after, okAfter := e.ObjectNew.(*corev1.Node)
		return okBefore && okAfter && len(before.Spec.Taints) != len(after.Spec.Taints)
	}}
}

// Reconcile takes the next step for each machine.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	s, pools, err := c.observe(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	actions, again := decide(s)
	var errs []error
	for _, a := range actions {
		err := c.act(ctx, &s, a, pools)
		if apierrors.IsConflict(err) {
			again = min(again, soon) // The Node changed since it was read; look again.
			continue
		}
		errs = append(errs, err)
	}
	c.forget(s.machines)
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

func (c *Controller) observe(ctx context.Context) (state, map[string]*snapshot.Pool, error) {
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return state{}, nil, fmt.Errorf("reading the cluster: %w", err)
	}
	evictions, err := karpenter.NewEvictions(ctx, c.Client, c.Clock)
	if err != nil {
		return state{}, nil, err
	}
	view := snapshot.Build(cluster)
	s := state{
		now: cluster.Now, machines: view.Machines, settle: c.Settle, blocker: evictions.Blocker,
		idleAfter: map[string]time.Duration{}, budget: map[string]int{}, wanted: wanted(view),
	}
	pools := map[string]*snapshot.Pool{}
	for i := range view.Pools {
		pool := &view.Pools[i]
		pools[pool.NodePool.Name] = pool
		if pool.Class == nil {
			continue
		}
		idle, never, err := pool.Class.Spec.Consolidation.IdleDuration()
		if err != nil || never {
			continue // A duration that cannot be read is told by the class's Accepted condition.
		}
		s.idleAfter[pool.NodePool.Name] = idle
		s.budget[pool.NodePool.Name] = pool.NodePool.MustGetAllowedDisruptions(c.Clock, nodes(view.Machines, pool.NodePool.Name), karpv1.DisruptionReasonEmpty)
	}
	return s, pools, nil
}

// wanted are the Nodes that the planner keeps for waiting pods.
func wanted(view snapshot.View) map[string]bool {
	w := map[string]bool{}
	for _, p := range planner.Build(view.Snapshot).Placements {
		w[view.Nodes[p.Node].Name] = true
	}
	return w
}

func nodes(machines []snapshot.Machine, pool string) int {
	n := 0
	for i := range machines {
		if m := &machines[i]; m.Pool() == pool && m.Node != nil {
			n++
		}
	}
	return n
}

func (c *Controller) forget(machines []snapshot.Machine) {
	there := map[types.UID]bool{}
	for i := range machines {
		if machines[i].Node != nil {
			there[machines[i].Node.UID] = true
		}
	}
	for uid := range c.told {
		if !there[uid] {
			delete(c.told, uid)
		}
	}
}
