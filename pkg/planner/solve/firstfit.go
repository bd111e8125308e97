package solve

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// firstFitPods is how many pods, of those that rules speak of, [orFirstFit] has placed one by one.
const firstFitPods = 3000

// orFirstFit returns what was found, or the plan of [firstfit.Plan] where that one is better, so that no plan costs more than Karpenter's packing does. It is
// rarely needed: limits that are almost used up, rules that hardly leave a place, a search that was ended early.
//
// Once the search is to end, it is done for small snapshots only, and machines are not sorted for every pod.
func orFirstFit(s planner.Snapshot, found planner.Plan, stop func() bool) planner.Plan {
	if found.Price == found.Bound && len(found.Unplaced) == 0 || !constraints.OnlyPrice(s) {
		return found
	}
	late := stop != nil && stop()
	if pods := podsOf(s); late && pods*(len(s.Nodes)+len(found.Launches)+1) > lateFirstFitSteps {
		return found
	}
	limits := firstfit.Limits{Sorted: firstfit.Steps, RuledPods: firstFitPods}
	if stop != nil {
		limits.Sorted = 10 * lateFirstFitSteps
		limits.RuledPods = min(limits.RuledPods, 2*lateFirstFitSteps/(len(s.Nodes)+len(found.Launches)+1))
	}
	if late {
		limits.Sorted = 0
	}
	first, ok := firstfit.Within(s, limits)
	if !ok || !costOf(first).Less(costOf(found)) || !constraints.IsPlain(s) && check.Plan(s, first) != nil {
		return found
	}
	if late {
		postpone(&first)
	}
	samePods := slices.EqualFunc(first.Unplaced, found.Unplaced, func(a, b planner.Unplaced) bool { return a.Pod == b.Pod })
	if samePods {
		first.Bound, first.Proof, first.Unplaced = min(found.Bound, first.Price), found.Proof, found.Unplaced
	}
	return first
}

// postpone leaves pods that a rule left without a place for the next round: the first fit does not look for another place of those that others follow.
func postpone(p *planner.Plan) {
	for i := range p.Unplaced {
		if p.Unplaced[i].Reason == planner.ReasonRule {
			p.Unplaced[i].Refusal = planner.NextRound
		}
	}
}

// lateFirstFitSteps is how many pods times machines [orFirstFit] looks at once the search is to end: some hundredths of a second.
const lateFirstFitSteps = 100_000

func costOf(p planner.Plan) pack.Cost {
	return pack.Cost{Left: int64(len(p.Unplaced)), Price: int64(p.Price), Machines: int64(len(p.Launches))}
}
