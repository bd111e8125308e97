package provisioning

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
)

// What plans are for, by which the controller tells whether a class was set aside before.
const (
	forPods     = "pods"
	forHeadroom = "headroom"
)

// contain makes a plan that keeps its own rules, without the classes for which no plan does, and the snapshot that it is for. It returns false where there is none
// for anybody. first, when not nil, is a plan that has been made already. Only the first plan has the whole budget of time: the others are rare, and follow a bug.
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
		// A bug of ours that concerns everybody. The same snapshot would give the same plan, so this waits for another one, and not for a person.
		log.FromContext(ctx).Error(err, "Found no plan that keeps its own rules", "purpose", purpose)
		return s, planner.Plan{}, false
	}
	c.noteAside(ctx, purpose, s, aside)
	return kept, plan, true
}

// noteAside counts the classes that a plan was made without, and logs those that the plan before it had.
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

// search is one that ends when the budget of time is over.
func (c *Controller) search(started time.Time, budget time.Duration) solve.Solver {
	return solve.Solver{Stop: func() bool { return c.Clock.Since(started) >= budget }}
}
