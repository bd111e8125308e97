package solve

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/pack"
)

func costOf(p planner.Plan) pack.Cost {
	return pack.Cost{Left: int64(len(p.Unplaced)), Price: int64(p.Price), Machines: int64(len(p.Launches))}
}

// samePods reports whether two plans place the same pods.
func samePods(a, b planner.Plan) bool {
	return slices.EqualFunc(a.Unplaced, b.Unplaced, func(x, y planner.Unplaced) bool { return x.Pod == y.Pod })
}

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
