package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// shareOfHint is the share of the effort for plans without the rules. With a quarter of the effort, their bounds are useful.
const shareOfHint = 4

// relax returns the plan for a snapshot without preferences, weights, choices and the rules whose domains are not machines. Its bound is a lower bound
// on the price of every plan for all pods under the rules, and it places the pods where they are cheap. It also reports whether pods are bound to
// domains. If none are, the bound holds for every plan for the same pods.
func (a *arranger) relax(s planner.Snapshot, share int64) (planner.Plan, bool) {
	pr := newProblem(s)
	parts, bound := pr.split()
	return a.solver.Plain(pr.lowered(parts, true), share), bound
}

// whole returns a portion of all pods of each class, with all preferences given up.
func (pr *problem) whole() []portion {
	var parts []portion
	for c := range pr.Classes {
		if n := len(pr.Classes[c].Pods); n > 0 {
			offerings, nodes := pr.labeled(c)
			parts = append(parts, portion{class: c, given: len(pr.Classes[c].Preferences), offerings: offerings, nodes: nodes, pods: n})
		}
	}
	return parts
}

// exact reports whether the relaxed snapshot is equivalent to the snapshot, apart from priorities.
func (pr *problem) exact() bool {
	for _, p := range pr.Pools {
		if p.Weight != pr.Pools[0].Weight || len(p.MinValues) > 0 {
			return false
		}
	}
	for i := range pr.rules {
		r := &pr.rules[i]
		if r.Topology != planner.PerNode || r.Kind == planner.Together && len(r.constrained) > 0 || r.Kind == planner.Spread && !slices.EqualFunc(r.constrained, r.Counted, func(a constrained, c int) bool { return a.class == c }) {
			return false
		}
	}
	return !slices.ContainsFunc(pr.Classes, func(c planner.Class) bool { return len(c.Preferences) > 0 })
}

// bound returns a lower bound on the price of any plan for the same pods. It is the bound of a plan without the rules for the same pods or fewer. The hint is
// such a plan if it places none of the pods that are left out.
func (a *arranger) bound(s planner.Snapshot, plan planner.Plan) planner.MicroUSD {
	if plan.Price == 0 {
		return 0
	}
	left := map[string]bool{}
	for _, x := range plan.Unplaced {
		left[x.Pod] = true
	}
	if a.hint != nil && (!a.hintBinds || len(left) == 0) {
		placed := len(left) // the number of pods left out that the hint places
		for _, x := range a.hint.Unplaced {
			if left[x.Pod] {
				placed--
			}
		}
		if placed == 0 {
			return a.hint.Bound
		}
	}
	if a.stopped() {
		return 0
	}
	relaxed, _ := a.relax(without(s, func(_ int, pod string) bool { return left[pod] }), shareOfHint)
	return relaxed.Bound
}

// optimal reports whether the hint shows that no plan for all pods is cheaper.
func (a *arranger) optimal(plan planner.Plan) bool {
	return a.hint != nil && plan.Price == a.hint.Bound && len(plan.Unplaced) == 0
}
