package constraints

import "karve.sh/karve/pkg/planner"

// rest plans for the unplaced pods of a plan, as long as any of them can be placed on the plan's launches or on what may still be launched. They may
// have been left out because other decisions were still open: in the end, a limit is not used up, or a machine was launched for other pods.
func (a *arranger) rest(s planner.Snapshot, plan planner.Plan) planner.Plan {
	for len(plan.Unplaced) > 0 && !a.stopped() {
		g := NewPartial(s)
		g.Fix(plan)
		more := (&arranger{solver: a.solver, given: g.Snapshot, moves: a.moves}).arrange(g.Snapshot)
		if len(more.Unplaced) >= len(plan.Unplaced) {
			break
		}
		g.Fix(more)
		left := map[string]bool{}
		for _, x := range more.Unplaced {
			left[x.Pod] = true
		}
		for _, x := range plan.Unplaced {
			if left[x.Pod] {
				g.Plan.Unplaced = append(g.Plan.Unplaced, x)
			}
		}
		plan = g.Plan
	}
	return plan
}
