package provisioning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
)

// act creates the claims of a plan, as many as may be without a machine at once; the rest comes with the next plan. entries are those of the
// launches in what is remembered of the plan, nil where nothing is. It returns when to look again.
func (c *Controller) act(ctx context.Context, view *snapshot.View, plan planner.Plan, entries []int) (time.Duration, error) {
	if quiet := c.Ledger.QuietUntil().Sub(c.Clock.Now()); quiet > 0 && len(plan.Launches) > 0 {
		return min(quiet, retry), nil
	}
	chosen := inTurn(view, plan.Launches, allowance(view.Machines, c.MaxUnlaunched))
	held := len(chosen) < len(plan.Launches)
	if held {
		c.batch.holdBack()
	}
	var errs []error
	for _, i := range chosen {
		l := plan.Launches[i]
		claim := render.NodeClaim(view, l)
		if entries != nil {
			errs = append(errs, c.memory.mark(claim, entries[i], view.Machines, held))
		}
		errs = append(errs, c.create(ctx, view, l, claim)) // A claim that the API refuses is no reason to leave the others out.
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	if held {
		// A launched claim wakes the controller; this is for when its watch is late.
		return time.Second, nil
	}
	return retry, nil
}

// allowance is how many more claims may be created while others are not launched.
func allowance(machines []snapshot.Machine, most int) int {
	for i := range machines {
		if m := &machines[i]; !m.Launched() {
			most--
		}
	}
	return max(0, most)
}

// inTurn are the launches, by index, that are made now: as many as are allowed, from one pool after another. A pool without any claim that is not launched may always
// create one, so that pools whose machines do not come delay no others.
func inTurn(view *snapshot.View, launches []planner.Launch, allowed int) []int {
	unlaunched := map[int]int{} // By pool.
	for i := range view.Machines {
		m := &view.Machines[i]
		if pool := slices.IndexFunc(view.Snapshot.Pools, func(p planner.Pool) bool { return p.Name == m.Pool() }); pool >= 0 && !m.Launched() {
			unlaunched[pool]++
		}
	}
	var all []int
	taken := make([]bool, len(launches))
	for more := true; more; {
		more = false
		had := map[int]bool{}
		for i, l := range launches {
			pool := view.Snapshot.Offerings[l.Offering].Pool
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

func (c *Controller) create(ctx context.Context, view *snapshot.View, l planner.Launch, claim *karpv1.NodeClaim) error {
	offering, shape := view.Offerings[l.Offering], launch.ShapeOf(claim)
	// The pool may have been deleted since the plan began. Kubernetes would delete the claim at once.
	if gone, err := launch.PoolGone(ctx, c.Client, shape); gone || err != nil {
		return err
	}
	// Noted before, since Karpenter may have refused and deleted the claim by the time the watch tells of it: nobody would know that it ever was.
	fresh := c.Ledger.Await(claim.Name, "", shape)
	err := c.Client.Create(ctx, claim)
	if err != nil && fresh {
		c.Ledger.Gone(claim.Name)
	}
	if apierrors.IsAlreadyExists(err) {
		// The same pods, pool and offering: this launch was made already, by an earlier life of the controller or another replica of it.
		log.FromContext(ctx).V(1).Info("NodeClaim exists already", "nodeClaim", klog.KObj(claim))
		return nil
	}
	if err != nil {
		return fmt.Errorf("creating NodeClaim %s: %w", claim.Name, err)
	}
	c.Ledger.Name(claim.Name, claim.UID)
	c.memory.created(claim)
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	c.Metrics.ClaimsCreated.WithLabelValues(pool, offering.Type.Name, offering.CapacityType).Inc()
	log.FromContext(ctx).Info("Created NodeClaim", "nodeClaim", klog.KObj(claim), "nodePool", pool, "instanceType", offering.Type.Name,
		"zone", offering.Zone, "capacityType", offering.CapacityType, "microUSDPerHour", offering.MicroUSDPerHour, "pods", len(l.Pods))
	return nil
}
