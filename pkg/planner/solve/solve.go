package solve

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Plan returns the plan of a [Solver] with default settings.
func Plan(s planner.Snapshot) planner.Plan { return Solver{}.Plan(s) }

// Plan returns the cheapest plan that it finds for a valid snapshot. It places as many pods as possible, at the lowest price, with the fewest machines, and
// gives a reason for every pod that is not placed. It is deterministic. Its decisions depend on names and amounts, not on the order of the snapshot. [Contain]
// plans for snapshots that may be invalid.
//
// Nodes are used first, because their capacity is already paid for. Snapshots with one shape of pods and small problems are solved to optimality. For
// the others, several heuristics compete and the best plan is improved, with budgets in steps, not in time.
func (with Solver) Plan(s planner.Snapshot) planner.Plan { return with.Resume(s, planner.Plan{}) }

// Resume is [Solver.Plan] for a snapshot for which an earlier plan is being carried out. earlier is that plan in terms of s: a placement for each
// machine that is being launched, with the pods that it was launched for, and the launches that have not been made yet. Resume first keeps what is
// still valid of it, exactly and without a clock. As long as nothing changes, the plan stays the same, however little time there is. It then searches
// for a better plan, and returns it if it places more pods or costs less in total. earlier may be stale: parts that are no longer valid are planned
// again. Machines that are marked in Frozen keep their pods in any case.
//
// The bound holds for plans with the same placements on machines that are being launched, unless the plan changes those.
func (with Solver) Resume(s planner.Snapshot, earlier planner.Plan) planner.Plan {
	whole := func(s planner.Snapshot) planner.Plan {
		return with.inGroups(s, earlier, func(with Solver, s planner.Snapshot) planner.Plan { return with.resume(s, earlier) })
	}
	return with.belowCutoffLast(s, whole)
}

// resume is Resume for a snapshot without groups.
func (with Solver) resume(s planner.Snapshot, earlier planner.Plan) planner.Plan {
	if len(earlier.Placements)+len(earlier.Launches) == 0 {
		return with.ungrouped(s)
	}
	with.First = nil
	kept, best, ok := with.keeping(s, earlier)
	if !ok {
		return with.ungrouped(s)
	}
	all := podsToPlaceIn(s)
	if best.Price == 0 && podsIn(best) == all {
		return best
	}
	if len(kept.Launches) > 0 && !with.stopped() {
		best = orBetter(s, best, with.onto(s, planner.Plan{Placements: kept.Placements}))
	}
	frozen := with.frozen(kept.Placements)
	if podsIn(kept) < all && len(frozen) < len(kept.Placements) && !with.stopped() {
		best = orBetter(s, best, with.onto(s, planner.Plan{Placements: frozen}))
	}
	return best
}

// frozen returns the placements on machines that keep their pods.
func (with Solver) frozen(placements []planner.Placement) []planner.Placement {
	var frozen []planner.Placement
	for _, p := range placements {
		if p.Node < len(with.Frozen) && with.Frozen[p.Node] {
			frozen = append(frozen, p)
		}
	}
	return frozen
}

// keeping returns the valid part of an earlier plan, and a complete plan that contains it. ok is false if there is none.
func (with Solver) keeping(s planner.Snapshot, earlier planner.Plan) (kept, whole planner.Plan, ok bool) {
	some := with
	some.Effort = max(1, effort.New(with.Effort, with.Stop).Left/2) // The other half is for changing the launches.
	// Part of a plan may violate a rule that the whole plan kept, such as a spread over zones. In this case only pods without rules are kept.
	for _, leaveOut := range [][]bool{nil, ruled(s)} {
		kept = keep(s, earlier, leaveOut)
		if podsIn(kept) == 0 {
			break
		}
		if len(kept.Launches) == 0 {
			some = with
		}
		if whole = some.onto(s, kept); check.Plan(s, whole) == nil {
			return kept, whole, true
		}
	}
	return planner.Plan{}, planner.Plan{}, false
}

// onto returns kept, completed with places for the other pods.
func (with Solver) onto(s planner.Snapshot, kept planner.Plan) planner.Plan {
	plan := kept
	if podsIn(kept) == 0 {
		return with.ungrouped(s)
	}
	if podsIn(kept) < pack.CountPods(s) {
		g := constraints.NewPartial(s)
		g.Fix(kept)
		more := with.ungrouped(g.Snapshot)
		g.Add(more)
		plan = g.Plan
		if len(kept.Launches) == 0 {
			plan.Bound = more.Bound
		}
	}
	constraints.Sort(s, &plan)
	return plan
}
