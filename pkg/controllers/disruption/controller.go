package disruption

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/share"
	"karve.sh/karve/pkg/controllers/slots"
	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/watchdog"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	one := c.on(metrics.Changed)
	return ctrl.NewControllerManagedBy(m).Named("disruption").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.onPod), builder.WithPredicates(podLeftOrCame())).
		Watches(&corev1.Node{}, c.on(metrics.Unhealthy), builder.WithPredicates(ours(), becameUnhealthy())).
		Watches(&corev1.Node{}, one, builder.WithPredicates(ours(), predicate.Not(becameUnhealthy()))).
		Watches(&karpv1.NodeClaim{}, c.on(metrics.Leaving), builder.WithPredicates(claimsOfOurs(), beganToGo())).
		Watches(&karpv1.NodeClaim{}, one, builder.WithPredicates(claimsOfOurs(), predicate.Not(beganToGo()))).
		Watches(&karpv1.NodePool{}, one).
		Watches(&v1alpha1.GPUNodeClass{}, one, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// on returns a handler that triggers a pass after an event. A machine that leaves or becomes unhealthy interrupts a search for a cheaper layout.
func (c *Controller) on(e metrics.Event) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return c.came(e)
	})
}

// came records an event and returns the request for a pass.
func (c *Controller) came(e metrics.Event) []reconcile.Request {
	c.arrived.Came(e, c.Clock.Now())
	if e == metrics.Leaving || e == metrics.Unhealthy {
		c.urgent.Store(true)
	}
	return []reconcile.Request{{}}
}

// onPod triggers a pass after an event of a bound pod, unless its node is not Karve's.
func (c *Controller) onPod(ctx context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err == nil && node.Labels[v1alpha1.GPUNodeClassLabel] == "" {
		return nil
	}
	return c.came(metrics.Changed)
}

// rest returns how long to wait for the next pass. Urgent events do not wait.
func (c *Controller) rest() time.Duration {
	if c.urgent.Load() {
		return 0
	}
	return c.pace.Wait(c.Clock.Now())
}

// Reconcile executes the next step of each machine.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if wait := c.rest(); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	started := c.Clock.Now()
	defer func() { c.Metrics.DisruptionSeconds.Observe(c.Clock.Since(started).Seconds()) }()
	c.urgent.Store(false)
	arrived := c.arrived.Take()
	limits := c.limits()
	view, seen, err := c.observe(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	for _, change := range share.Changes(view, nil) {
		errs = append(errs, share.Write(ctx, c.Client, c.Recorder, change, c.Clock.Now()))
	}
	errs = append(errs, slots.Update(ctx, c.Client, c.Recorder, view, nil, c.Clock.Now()), c.noteShortages(ctx, view))
	var round *disruption.Round
	var commands disruption.Commands
	if err := c.bounded(ctx, limits, func(limits disruption.Limits) { round, commands = disruption.Begin(seen, c.memory, limits) }); err != nil {
		return reconcile.Result{}, errors.Join(append(errs, err)...)
	}
	c.count(commands)
	decided := c.Clock.Now()
	c.pace.Passed(started, decided, 0, maxRest)
	c.Metrics.Decided("disruption", arrived, decided)
	retry, err := c.executeAll(ctx, round, commands.Steps)
	c.memory, errs = round.Memory(), append(errs, err)
	// Repairs, drains and idle machines come before the search for a cheaper layout.
	again := min(commands.Again, retry)
	next, err := c.cheapen(ctx, round, again, limits)
	errs = append(errs, err)
	c.measure(round)
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: min(again, next)}, nil
}

func (c *Controller) observe(ctx context.Context) (*snapshot.View, *disruption.Seen, error) {
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the cluster: %w", err)
	}
	evictions, err := karpenter.NewEvictions(ctx, c.Client, c.Clock)
	if err != nil {
		return nil, nil, err
	}
	g, err := c.Planner.Of(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	plan, headroom := g.Plan(ctx), g.Headroom(ctx)
	var seen *disruption.Seen
	if err := c.Planner.Watchdog.Run(ctx, watchdog.View, func(context.Context, watchdog.Visit) error {
		seen = disruption.Look(cluster, plan, headroom, repair.Diagnose(cluster, g.View.Machines, c.Tolerations), evictions, c.Settle)
		return nil
	}); err != nil {
		return nil, nil, err
	}
	return &plan.View, seen, nil
}

// cheapen searches for a cheaper layout, executes the steps that begin, and steers new pods. again is when the next pass is due for other reasons. It returns
// when it is due because of these.
func (c *Controller) cheapen(ctx context.Context, round *disruption.Round, again time.Duration, limits disruption.Limits) (time.Duration, error) {
	var search disruption.Search
	began := c.Clock.Now()
	if err := c.bounded(ctx, limits, func(limits disruption.Limits) { again, search = round.Search(again, limits) }); err != nil {
		return soon, err
	}
	if search.Ran {
		c.Metrics.LayoutSeconds.Observe(c.Clock.Since(began).Seconds())
	}
	if search.Ended != nil {
		c.Metrics.LayoutPrice.Set(metrics.USD(int64(search.Ended.Price)))
		c.Metrics.LayoutBound.Set(metrics.USD(int64(search.Ended.Bound)))
	}
	before := round.Memory()
	commands := round.Cheapen(again)
	c.memory = round.Memory()
	var errs []error
	if err := c.pay(ctx, commands); err != nil {
		c.memory = c.memory.Unpaid(before)
		commands.Steps, commands.Begun, errs = nil, nil, append(errs, err)
	}
	c.count(commands)
	retry, err := c.executeAll(ctx, round, commands.Steps)
	errs, again = append(errs, err), min(commands.Again, retry)
	retry, err = writes(ctx, nodesAtOnce, len(commands.Steer), func(i int) error { return c.steer(ctx, commands.Steer[i]) })
	return min(again, retry), errors.Join(append(errs, err)...)
}

// limits returns the limits of a round that begins now.
func (c *Controller) limits() disruption.Limits {
	return disruption.Limits{
		Timer: func(d time.Duration) func() bool {
			began := c.Clock.Now()
			return func() bool { return c.Clock.Since(began) >= d }
		},
		Urgent: func() bool { return c.urgent.Load() || c.Planner.Busy() },
	}
}

// bounded makes decisions of a pass within the limit of the watchdog. A machine at which they take longer is left out of the next passes.
func (c *Controller) bounded(ctx context.Context, limits disruption.Limits, decide func(disruption.Limits)) error {
	return c.Planner.Watchdog.Run(ctx, watchdog.Plan, func(_ context.Context, visit watchdog.Visit) error {
		limits.Visit = func(m *records.Machine) { visit("NodeClaim", m.Claim) }
		decide(limits)
		return nil
	})
}

// nodesAtOnce is how many nodes are changed concurrently.
const nodesAtOnce = 16

// executeAll executes commands, and returns when the next pass is due because of them.
func (c *Controller) executeAll(ctx context.Context, round *disruption.Round, commands []disruption.Command) (time.Duration, error) {
	var marks, nodes, others []disruption.Command
	for _, cmd := range commands {
		switch {
		case cmd.Step.Marks():
			marks = append(marks, cmd)
		case cmd.Step.ChangesNode():
			nodes = append(nodes, cmd)
		default:
			others = append(others, cmd)
		}
	}
	again := maxWait
	var errs []error
	execute := func(workers int, commands []disruption.Command) {
		retry, err := writes(ctx, workers, len(commands), func(i int) error { return c.execute(ctx, round, commands[i]) })
		again, errs = min(again, retry), append(errs, err)
	}
	// A plan must see all marks of a step or none. If it saw only some, it would launch other machines.
	if len(marks) > 0 {
		c.Gatherer.Together(func() { execute(1, marks) })
	}
	execute(nodesAtOnce, nodes)
	execute(1, others)
	return again, errors.Join(errs...)
}

// writes calls write for each of n objects, several concurrently. It returns when the next pass is due: soon after a conflict, because the object has
// changed since it was read.
func writes(ctx context.Context, workers, n int, write func(i int) error) (again time.Duration, err error) {
	errs := make([]error, n)
	workqueue.ParallelizeUntil(ctx, workers, n, func(i int) { errs[i] = write(i) })
	again = maxWait
	for i := range errs {
		if apierrors.IsConflict(errs[i]) {
			again, errs[i] = soon, nil
		}
	}
	return again, errors.Join(errors.Join(errs...), ctx.Err())
}
