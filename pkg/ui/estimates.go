package ui

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// estimates are values that require a plan, and so take longer than a read. They are replaced as a whole.
type estimates struct {
	// reasons are why pending pods have no place, or what those that have one wait for, by namespace/name.
	reasons map[string]string
	// bound is a lower bound on the price of nodes for all running and pending pods, in micro-dollars per hour. headroom is the number of replicas to keep
	// free. They are nil if unknown.
	bound, headroom *int64
}

// What pending pods that have a place wait for.
const (
	reasonPlanned = "Planned"
	reasonPlaced  = "HasRoom"
)

const planFor = 300 * time.Millisecond

// searching returns solvers that stop after planFor, and when the context ends.
func searching(ctx context.Context, clk clock.Clock) quote.Search {
	return func() solve.Solver {
		began := clk.Now()
		return solve.Solver{Stop: func() bool { return ctx.Err() != nil || clk.Since(began) > planFor }}
	}
}

// estimate makes a plan for the pending pods, and one for all pods from scratch.
func estimate(c *facts.Cluster, search quote.Search) *estimates {
	e := &estimates{reasons: map[string]string{}}
	view, with := snapshot.Build(c), checked.Search{Solver: search}
	if _, plan, outcome := with.Plan(view.Snapshot, nil); outcome.Err == nil {
		for _, launch := range plan.Launches {
			e.say(reasonPlanned, launch.Pods)
		}
		for _, placement := range plan.Placements {
			e.say(reasonPlaced, placement.Pods)
		}
		for i := range plan.Unplaced {
			e.say(string(plan.Unplaced[i].Reason), []string{plan.Unplaced[i].Pod})
		}
	}
	kept := int64(0)
	for _, class := range view.HeadroomClasses() {
		kept += int64(len(class.Pods)) * max(1, class.Requests.Replicas)
	}
	e.headroom = &kept
	if _, plan, outcome := with.Plan(snapshot.Build(quote.Anew(c)).Snapshot, nil); outcome.Err == nil {
		e.bound = new(int64(plan.Bound))
	}
	return e
}

func (e *estimates) say(reason string, pods []string) {
	for _, pod := range pods {
		e.reasons[pod] = reason
	}
}
