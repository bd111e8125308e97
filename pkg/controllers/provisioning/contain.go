package provisioning

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
)

// Purposes of plans. The controller remembers for each purpose which classes were left out.
const (
	forPods     = "pods"
	forHeadroom = "headroom"
)

// contain returns a plan that passes its check and the snapshot that it is for. It leaves out classes with which no plan passes. It returns false if no plan
// passes at all. The argument first is a plan that was already made, and may be nil. Only the first plan has the whole time budget, because the others are
// rare and follow a bug.
func (c *Controller) contain(ctx context.Context, purpose string, s planner.Snapshot, first *planner.Plan, build func(planner.Snapshot, solve.Solver) planner.Plan) (planner.Snapshot, planner.Plan, bool) {
	started := c.Clock.Now()
	plans := 0
	if first != nil {
		plans = 1
	}
	kept, plan, aside, err := solve.Contain(s, first, func(s planner.Snapshot) planner.Plan {
		budget := c.PlanBudget
		if plans++; plans > 1 {
			budget /= 4
		}
		return build(s, c.search(c.Clock.Now(), budget))
	}, func() bool { return c.Clock.Since(started) < 5*c.PlanBudget })
	if plans > 1 || err != nil {
		c.Metrics.PlansRejected.Inc()
	}
	if err != nil {
		// This is a bug in Karve that affects all pods. The same snapshot would give the same plan, so it waits for another snapshot.
		log.FromContext(ctx).Error(err, "Found no plan that keeps its own rules", "purpose", purpose)
		return s, planner.Plan{}, false
	}
	c.noteAside(ctx, purpose, s, aside)
	return kept, plan, true
}

// noteAside counts the classes that were left out of a plan, and logs those that the plan before had.
func (c *Controller) noteAside(ctx context.Context, purpose string, s planner.Snapshot, aside []solve.Aside) {
	before, now := c.aside[purpose], sets.New[string]()
	for _, a := range aside {
		c.Metrics.SetAside(a)
		if pods := s.Classes[a.Class].Pods; len(pods) > 0 {
			if !before.Has(pods[0]) {
				log.FromContext(ctx).Info("Planned without pods that no sound plan was found for", "pod", pods[0], "pods", len(pods), "purpose", purpose, "reason", a.Refusal.Message)
			}
			now.Insert(pods[0])
		}
	}
	c.aside[purpose] = now
}

// search returns a solver that stops when the time budget is used up.
func (c *Controller) search(started time.Time, budget time.Duration) solve.Solver {
	return solve.Solver{Stop: func() bool { return c.Clock.Since(started) >= budget }}
}
