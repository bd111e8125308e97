package provisioning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
)

// claimsAtOnce is how many NodeClaims are written concurrently. With a busy API server, a write takes half a second.
const claimsAtOnce = 16

// launch adopts a plan and makes its launches, except those that wait for places on machines that are starting or for a sign of the scheduler's, and those that would
// save nothing.
func (c *Controller) launch(ctx context.Context, view *snapshot.View, plan planner.Plan, displaced displaced) (time.Duration, error) {
	entries, unproven, useless := c.Planner.Adopt(view, plan), unproven(view, plan.Launches), saveNothing(view, plan.Launches)
	var due []int
	var launches []planner.Launch
	var entriesOfDue []int
	for i := range plan.Launches {
		if !displaced.waits[i] && !unproven[i] && !useless[i] {
			due, launches, entriesOfDue = append(due, i), append(launches, plan.Launches[i]), append(entriesOfDue, entries[i])
		}
	}
	chosen, wait, err := c.act(ctx, view, launches, plan.Placements, entriesOfDue)
	made := make([]int, len(chosen))
	for i, at := range chosen {
		made[i] = due[at]
		if since := displaced.since[made[i]]; !since.IsZero() {
			c.Metrics.Decided("provisioning", map[metrics.Event]time.Time{metrics.Displaced: since}, c.Clock.Now())
		}
	}
	c.seats.note(view, plan, displaced, made)
	if slices.Contains(unproven, true) {
		wait = min(wait, time.Second)
	}
	return wait, err
}

// retry is the longest interval between plans while pods are pending.
const retry = 10 * time.Second

// act creates as many NodeClaims for launches as may be unlaunched at the same time. The rest follows with the next plan. entries has the entry of each
// launch in the remembered plan. It is nil if there is no such plan. placements are those of the plan. act returns the indices of the launches that it made, and when to reconcile again.
func (c *Controller) act(ctx context.Context, view *snapshot.View, launches []planner.Launch, placements []planner.Placement, entries []int) ([]int, time.Duration, error) {
	if quiet := c.Ledger.QuietUntil().Sub(c.Clock.Now()); quiet > 0 && len(launches) > 0 {
		return nil, min(quiet, retry), nil
	}
	window := launching.Window(view.Machines, c.Clock.Now(), c.MaxUnlaunched)
	c.Metrics.LaunchWindow.Set(float64(window))
	chosen := inTurn(view, launches, window)
	held := len(chosen) < len(launches)
	if held {
		c.batch.holdBack()
	}
	errs := make([]error, len(chosen))
	create := func(i int) { // One NodeClaim that the API server rejects does not hold back the others.
		l := launches[chosen[i]]
		claim := render.NodeClaim(view, l, placements)
		if entries != nil {
			errs[i] = c.Planner.Progress.Mark(claim, entries[chosen[i]], view.Machines, held && i == 0)
		}
		errs[i] = errors.Join(errs[i], c.create(ctx, view, l, claim))
	}
	if len(chosen) > 0 {
		create(0) // It records the launches that are held back, so the others follow it.
		workqueue.ParallelizeUntil(ctx, claimsAtOnce, len(chosen)-1, func(i int) { create(i + 1) })
	}
	if err := errors.Join(errors.Join(errs...), ctx.Err()); err != nil {
		return nil, 0, err
	}
	if held {
		// A NodeClaim that launches triggers the controller. This delay covers a late watch.
		return chosen, time.Second, nil
	}
	return chosen, retry, nil
}

// inTurn returns the indices of the launches to make now, so that as many NodeClaims are unlaunched as the window allows. It takes them from the pools
// in turn, those for one group of pods after the other, before those for single pods. A pool without unlaunched NodeClaims may always create one, so that pools
// whose machines do not launch do not delay others.
func inTurn(view *snapshot.View, launches []planner.Launch, window int) []int {
	allowed := window
	unlaunched := map[int]int{} // The number of NodeClaims by pool.
	for i := range view.Machines {
		m := &view.Machines[i]
		if m.Launched() {
			continue
		}
		allowed--
		if pool := slices.IndexFunc(view.Snapshot.Pools, func(p planner.Pool) bool { return p.Name == m.Pool() }); pool >= 0 {
			unlaunched[pool]++
		}
	}
	var all []int
	taken, order := make([]bool, len(launches)), groupsFirst(view.Snapshot, launches)
	for more := true; more; {
		more = false
		had := map[int]bool{}
		for _, i := range order {
			pool := view.Snapshot.Offerings[launches[i].Offering].Pool
			if taken[i] || had[pool] || allowed <= 0 && unlaunched[pool] > 0 {
				continue
			}
			taken[i], had[pool], more = true, true, true
			unlaunched[pool]++
			allowed--
			all = append(all, i)
		}
	}
	slices.Sort(all)
	return all
}

// groupsFirst returns the indices of the launches, those for pods of the first group first, and those for pods of no group last.
func groupsFirst(s planner.Snapshot, launches []planner.Launch) []int {
	first := map[string]int{} // the group of each pod
	for i, g := range s.Groups {
		for _, c := range g.Classes {
			for _, pod := range s.Classes[c].Pods {
				first[pod] = i - len(s.Groups)
			}
		}
	}
	rank, order := make([]int, len(launches)), make([]int, len(launches))
	for i, l := range launches {
		order[i] = i
		for _, pod := range l.Pods {
			rank[i] = min(rank[i], first[pod])
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rank[a], rank[b]) })
	return order
}

func (c *Controller) create(ctx context.Context, view *snapshot.View, l planner.Launch, claim *karpv1.NodeClaim) error {
	offering, shape := view.Offerings[l.Offering], launching.ShapeOf(claim)
	// The pool may have been deleted since the plan began. Kubernetes would then delete the NodeClaim immediately.
	if gone, err := launch.PoolGone(ctx, c.Client, shape); gone || err != nil {
		return err
	}
	// The NodeClaim is recorded before it is created. Karpenter may reject and delete it before the watch shows it, and then nothing would know that it
	// existed.
	fresh := c.Ledger.Await(claim.Name, "", shape)
	err := c.Client.Create(ctx, claim)
	if err != nil && fresh {
		c.Ledger.Gone(claim.Name)
	}
	if apierrors.IsAlreadyExists(err) {
		// Another run or replica of the controller already made the launch, with the same pods, pool and offering.
		log.FromContext(ctx).V(1).Info("NodeClaim exists already", "nodeClaim", klog.KObj(claim))
		return nil
	}
	if err != nil {
		return fmt.Errorf("creating NodeClaim %s: %w", claim.Name, err)
	}
	c.Ledger.Name(claim.Name, claim.UID)
	c.Planner.Progress.Created(claim)
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	c.Metrics.ClaimsCreated.WithLabelValues(pool, offering.Type.Name, offering.CapacityType).Inc()
	log.FromContext(ctx).Info("Created NodeClaim", "nodeClaim", klog.KObj(claim), "nodePool", pool, "instanceType", offering.Type.Name,
		"zone", offering.Zone, "capacityType", offering.CapacityType, "microUSDPerHour", offering.MicroUSDPerHour, "pods", len(l.Pods))
	return nil
}

// replan updates the NodeClaims of starting machines with the pods that they are now for.
func (c *Controller) replan(ctx context.Context, view *snapshot.View, plan planner.Plan) error {
	type change struct {
		claim *karpv1.NodeClaim
		pods  string
	}
	var changes []change
	for claim, pods := range view.Replanned(plan) {
		changes = append(changes, change{claim, pods})
	}
	errs := make([]error, len(changes))
	workqueue.ParallelizeUntil(ctx, claimsAtOnce, len(changes), func(i int) {
		claim := changes[i].claim
		changed := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.PlannedPodsAnnotation, changes[i].pods)
		if err := c.Client.Patch(ctx, changed, client.MergeFrom(claim)); client.IgnoreNotFound(err) != nil {
			errs[i] = fmt.Errorf("writing the pods of NodeClaim %s: %w", claim.Name, err)
		}
	})
	return errors.Join(errors.Join(errs...), ctx.Err())
}
