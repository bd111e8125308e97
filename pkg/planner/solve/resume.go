package solve

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

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
	with.First = nil
	kept, best, ok := with.keeping(s, earlier)
	if !ok {
		return with.valid(s)
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
		return with.valid(s)
	}
	if podsIn(kept) < pack.CountPods(s) {
		g := constraints.NewPartial(s)
		g.Fix(kept)
		more := with.valid(g.Snapshot)
		g.Add(more)
		plan = g.Plan
		if len(kept.Launches) == 0 {
			plan.Bound = more.Bound
		}
	}
	constraints.Sort(s, &plan)
	return plan
}

func (with Solver) stopped() bool { return with.Stop != nil && with.Stop() }

// orBetter returns plan if it is better than best and correct, and best otherwise. If both place the same pods, the bound of plan is also valid for
// best.
func orBetter(s planner.Snapshot, best, plan planner.Plan) planner.Plan {
	if check.Plan(s, plan) != nil {
		return best
	}
	if constraints.IsBetter(s, plan, best) {
		return plan
	}
	if samePods(plan, best) {
		best.Bound = min(best.Price, max(best.Bound, plan.Bound))
	}
	return best
}

// ruled reports for each class whether it is constrained or counted by a rule about more than the pods of one machine.
func ruled(s planner.Snapshot) []bool {
	out := make([]bool, len(s.Classes))
	for _, r := range s.Rules {
		if r.Kind == planner.Apart && r.Topology == planner.PerNode {
			continue
		}
		for _, list := range [][]int{r.Classes, r.Counted} {
			for _, c := range list {
				out[c] = true
			}
		}
	}
	return out
}

// podsIn returns the number of pods that the plan places.
func podsIn(p planner.Plan) int {
	n := 0
	for _, x := range p.Placements {
		n += len(x.Pods)
	}
	for _, x := range p.Launches {
		n += len(x.Pods)
	}
	return n
}

func podsToPlaceIn(s planner.Snapshot) int {
	n := 0
	for _, c := range s.Classes {
		if c.Blocked == nil {
			n += len(c.Pods)
		}
	}
	return n
}
