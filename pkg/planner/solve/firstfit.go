package solve

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// firstFitPods is the maximum number of pods subject to rules that [orFirstFit] places one by one.
const firstFitPods = 3000

// orFirstFit returns the given plan, or the plan of [firstfit.Plan] if that is better, so that no plan costs more than Karpenter's packing. The latter
// is rarely better: if limits are nearly reached, if rules leave few places, or if the search ended early.
//
// If the search has to end, first fit runs only for small snapshots, and does not sort machines for every pod.
func orFirstFit(s planner.Snapshot, found planner.Plan, stop func() bool) planner.Plan {
	if found.Price == found.Bound && len(found.Unplaced) == 0 || !constraints.OnlyPrice(s) {
		return found
	}
	late := stop != nil && stop()
	if pods := pack.CountPods(s); late && pods*(len(s.Nodes)+len(found.Launches)+1) > lateFirstFitSteps {
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
	if samePods(first, found) {
		first.Bound, first.Unplaced = min(found.Bound, first.Price), found.Unplaced
	}
	return first
}

// postpone changes the reason of pods that a rule kept from being placed to ReasonNextRound. First fit does not reconsider where it placed the pods on
// which others depend.
func postpone(p *planner.Plan) {
	for i := range p.Unplaced {
		if p.Unplaced[i].Reason == planner.ReasonRule {
			p.Unplaced[i].Refusal = planner.NextRound
		}
	}
}

// lateFirstFitSteps is the maximum of pods times machines for which [orFirstFit] runs once the search has to end: some hundredths of a second.
const lateFirstFitSteps = 100_000
