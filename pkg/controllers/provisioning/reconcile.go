package provisioning

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/share"
	"karve.sh/karve/pkg/controllers/slots"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// A plan for 1,500 pods takes a fifth of a second of CPU time, and in a burst some NodeClaim changes all the time. restFactor is how many times as long as a
// plan took the next one waits, unless something is urgent: controllers and the scheduler share the API server's machine in many clusters. maxRest limits it.
const (
	restFactor = 4
	maxRest    = 5 * time.Second
)

// nextRound is the delay before the plan for pods that were postponed.
const nextRound = time.Second

// maxLogged is the largest number of pods in one log message.
const maxLogged = 1000

// Reconcile makes a plan once the batch is due. Before that, it only continues a plan with launches that were held back.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	now := c.Clock.Now()
	if rest := c.rests.Sub(now); rest > 0 && !c.batch.urgent() {
		return reconcile.Result{RequeueAfter: rest}, nil
	}
	result, err := c.round(ctx, now)
	c.rests = restAfter(now, c.Clock.Now())
	return result, err
}

// restAfter returns when the next plan may be made after one that began and ended at the given times.
func restAfter(began, ended time.Time) time.Time {
	return ended.Add(min(restFactor*ended.Sub(began), maxRest))
}

func (c *Controller) round(ctx context.Context, now time.Time) (reconcile.Result, error) {
	wait := c.batch.due(now)
	if wait <= 0 {
		return c.plan(ctx, nil)
	}
	gathering, others := c.batch.gathering()
	if !others {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	result, err := c.plan(ctx, gathering)
	if err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > wait) {
		result.RequeueAfter = wait
	}
	return result, err
}

// plan makes a plan for the pending pods, except those that are still being gathered. It creates the NodeClaims, and records events on the pods without
// room.
func (c *Controller) plan(ctx context.Context, gathering sets.Set[types.UID]) (reconcile.Result, error) {
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the cluster: %w", err)
	}
	if c.Ledger.Vanished(cluster.Indexed().HasNodeClaim, c.Clock.Now()) {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	c.recordOddBuffers(cluster.OddBuffers)
	g, err := c.Planner.Of(ctx, cluster)
	if err != nil {
		return reconcile.Result{}, err
	}
	closed := c.batch.planned()
	arrived := c.arrived.Take()
	warm := snapshot.WantsHeadroom(cluster)
	c.remember(g.View, warm)
	if !closed { // Pods that the scheduler has not tried are planned with a batch, or later with their own.
		gathering = gathering.Union(g.View.Unplanned())
	}
	g = g.Without(gathering)
	fresh, came := c.batch.take(g.View.Waiting())
	if len(g.View.Pods) == 0 && len(g.View.Postponed) > 0 {
		c.Planner.Requeue(g.View, planner.Plan{}) // All pods in this turn belong to others or are still being gathered.
		return reconcile.Result{RequeueAfter: nextRound}, nil
	}
	if len(g.View.Pods) == 0 && !warm {
		c.Metrics.Planned(planner.Plan{}, c.Clock.Now())
		c.decided(arrived, came)
		c.Planner.Adopt(g.View, planner.Plan{})
		return reconcile.Result{}, nil
	}
	made := g.Plan(ctx)
	if made.Err != nil {
		return reconcile.Result{RequeueAfter: retry}, nil //nolint:nilerr // The planner has reported it.
	}
	view, plan := &made.View, made.Plan
	c.decided(arrived, came)
	c.Metrics.Planned(planner.Paid(view.Snapshot, plan), c.Clock.Now())
	log.FromContext(ctx).V(1).Info("Planned", "pods", len(view.Pods), "new", fresh[:min(len(fresh), maxLogged)], "launches", len(plan.Launches), "placements", len(plan.Placements),
		"unplaced", len(plan.Unplaced), "microUSDPerHour", plan.Price, "bound", plan.Bound)
	displaced := c.seats.of(view, plan, c.Clock.Now())
	wait, err := c.launch(ctx, view, plan, displaced) // This is what the pods wait for longest.
	errs := c.write(ctx, g.View, cluster.GPUNodeClasses, made)
	more := c.withdraw(ctx, view, plan)
	again, failed := c.wake(ctx, view, plan)
	errs = append(errs, failed)
	c.recordEvents(view, plan, displaced)
	if err == nil && warm && len(plan.Launches) == 0 {
		wait, err = c.warm(ctx, g.Headroom(ctx))
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return reconcile.Result{}, err
	}
	if len(view.Postponed) > 0 {
		c.batch.hurry() // These pods have already waited with their batch.
		wait = min(wait, nextRound)
	}
	return reconcile.Result{RequeueAfter: soonest(wait, more, again, displaced.next)}, nil
}

// soonest returns the shortest of the waits. A wait of 0 does not count, except the first.
func soonest(wait time.Duration, others ...time.Duration) time.Duration {
	for _, earlier := range others {
		if earlier > 0 {
			wait = min(wait, earlier)
		}
	}
	return wait
}

// write writes to machines what a plan changes for them: their replicas and slots, and the pods for which they were launched.
func (c *Controller) write(ctx context.Context, seen *snapshot.View, classes []v1alpha1.GPUNodeClass, made *checked.Plan) []error {
	view, plan := &made.View, made.Plan
	var errs []error
	for _, change := range share.Changes(view, plan.Placements) {
		errs = append(errs, share.Write(ctx, c.Client, c.Recorder, change, c.Clock.Now()))
	}
	errs = append(errs, slots.Update(ctx, c.Client, c.Recorder, view, plan.Placements, c.Clock.Now()))
	if err := c.recordMismatches(ctx, seen, classes); err != nil {
		return append(errs, err)
	}
	return append(errs, c.replan(ctx, view, plan)) // It overwrites for which pods a node was launched.
}

// decided records how long events and pods have waited for a plan.
func (c *Controller) decided(arrived map[metrics.Event]time.Time, came []time.Time) {
	now := c.Clock.Now()
	c.Metrics.Decided("provisioning", arrived, now)
	for _, at := range came {
		c.Metrics.Decided("provisioning", map[metrics.Event]time.Time{metrics.Pending: at}, now)
	}
}

// warm launches the missing headroom. It runs only if nothing is launched for pending pods, because those machines may have room for it.
func (c *Controller) warm(ctx context.Context, headroom *checked.Headroom) (time.Duration, error) {
	if headroom.Err != nil {
		return retry, nil //nolint:nilerr // The planner has reported it.
	}
	plan := headroom.Plan
	log.FromContext(ctx).V(1).Info("Planned headroom", "launches", len(plan.Launches), "placements", len(plan.Placements), "unplaced", len(plan.Unplaced),
		"microUSDPerHour", plan.Price)
	_, wait, err := c.act(ctx, &headroom.View, plan.Launches, nil, nil)
	return wait, err
}

// remember records which pods are pending, and whether any pods need capacity or headroom is kept.
func (c *Controller) remember(view *snapshot.View, warm bool) {
	waiting, tried, oldest := sets.New[types.UID](), 0, time.Duration(0)
	for _, pod := range slices.Concat(view.Waiting(), view.Postponed) {
		waiting.Insert(pod.UID)
		if !facts.Untried(pod) {
			tried++
			oldest = max(oldest, c.Clock.Since(pod.CreationTimestamp.Time))
		}
	}
	c.Metrics.OldestPod.Set(oldest.Seconds())
	c.pending.Store(len(view.Pods)+len(view.Postponed) > view.Unplanned().Len() || warm)
	c.Metrics.PodsWaiting.Set(float64(tried))
	c.batch.keep(waiting)
	c.withdrawn.forget(c.Clock.Now())
	maps.DeleteFunc(c.reported, func(uid types.UID, _ report) bool { return !waiting.Has(uid) })
}
