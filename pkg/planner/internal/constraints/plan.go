package constraints

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Plan plans for a valid snapshot with rules, preferences, priorities, weights and choices. It decides which pods go to which domain and pool, and which of
// their preferences are satisfied. It splits the classes accordingly, and calls the solver with snapshots whose only constraints are quotas and pods
// that are kept apart on machines. It then combines the plans. Pods that the solver does not place affect the decisions of the next round.
func Plan(s planner.Snapshot, with Solver) planner.Plan {
	if IsPlain(s) {
		return with.Plain(s, 1)
	}
	clean, refused := withoutBlocked(s)
	clean = withoutHopeless(clean)
	a := arranger{solver: with, given: clean, moves: newMoves(clean)}
	pr := newProblem(clean)
	if pr.exact() {
		if plan := a.plain(pr.lowered(pr.whole(), true)); !inverted(clean, plan) {
			plan.Unplaced = append(plan.Unplaced, refused...)
			Sort(s, &plan)
			return plan
		}
	}
	plan := a.arrange(clean)
	if inverted(clean, plan) {
		plan = betterFor(clean, a.byPriority(clean), plan)
	}
	plan = a.rest(clean, plan)
	plan, optimal := a.enumerate(clean, plan)
	if plan.Bound = plan.Price; !optimal {
		plan.Bound = min(plan.Price, a.bound(clean, plan))
	}
	plan.Unplaced = append(plan.Unplaced, refused...)
	Sort(s, &plan)
	return plan
}

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

// Sort sorts a plan by names.
func Sort(s planner.Snapshot, p *planner.Plan) {
	slices.SortFunc(p.Placements, func(a, b planner.Placement) int {
		return cmp.Or(cmp.Compare(s.Nodes[a.Node].Name, s.Nodes[b.Node].Name), cmp.Compare(a.Node, b.Node))
	})
	slices.SortFunc(p.Launches, func(a, b planner.Launch) int {
		x, y := s.Offerings[a.Offering], s.Offerings[b.Offering]
		return cmp.Or(cmp.Compare(s.Pools[x.Pool].Name, s.Pools[y.Pool].Name), cmp.Compare(x.InstanceType, y.InstanceType), cmp.Compare(x.Zone, y.Zone),
			cmp.Compare(x.CapacityType, y.CapacityType), cmp.Compare(len(b.Pods), len(a.Pods)), slices.Compare(a.Pods, b.Pods))
	})
	slices.SortStableFunc(p.Unplaced, func(a, b planner.Unplaced) int { return cmp.Compare(a.Pod, b.Pod) })
}
