package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// parts plans for a snapshot in independent parts if it has several: no class may use machines of two of them. Pods that are spread over zones give a part for
// each zone, and several small problems are solved better than a large one. If the parts together exceed a limit, or if one leaves pods that a limit may have
// kept out, the snapshot is planned as a whole.
func (a *arranger) parts(s planner.Snapshot) planner.Plan {
	of := connected(s)
	n := 0
	for _, p := range of {
		n = max(n, p+1)
	}
	if n < 2 {
		return a.plain(s)
	}
	// All parts get a little effort before one gets much, so that a search that is cut short has spent it evenly.
	best := make([]planner.Plan, n)
	for round, share := range []int64{64, 16, 4, 1} {
		if round > 0 && a.stopped() {
			break
		}
		for p := range n {
			plan := a.solver.Plain(without(s, func(c int, _ string) bool { return of[c] != p }), share)
			if round == 0 || len(plan.Unplaced) < len(best[p].Unplaced) || len(plan.Unplaced) == len(best[p].Unplaced) && plan.Price < best[p].Price {
				best[p] = plan
			}
		}
	}
	var whole planner.Plan
	for _, plan := range best {
		whole.Placements = append(whole.Placements, plan.Placements...)
		whole.Launches = append(whole.Launches, plan.Launches...)
		whole.Unplaced = append(whole.Unplaced, plan.Unplaced...)
		whole.Price += plan.Price
		whole.Bound += plan.Bound
	}
	if limited(s) && (len(whole.Unplaced) > 0 || !withinLimits(s, whole)) {
		return a.plain(s)
	}
	return whole
}

// limited reports whether parts may need more together than limits and stocks allow.
func limited(s planner.Snapshot) bool {
	return len(s.Stocks) > 0 || slices.ContainsFunc(s.Pools, func(p planner.Pool) bool { left := amount.UsageOf(p.Remaining); return !left.Unlimited() })
}

// withinLimits reports whether the launches of a plan are within the limits and the stocks.
func withinLimits(s planner.Snapshot, p planner.Plan) bool {
	left := pack.LimitsOf(s)
	for _, l := range p.Launches {
		c := pack.ChargeOf(s.Offerings[l.Offering])
		if !left.Admits(&c) {
			return false
		}
		left.Launch(&c)
	}
	return true
}

// connected returns the part of each class, numbered in the order of their first pods.
func connected(s planner.Snapshot) []int {
	of := make([]int, len(s.Classes))
	// parent is a forest over offerings, then nodes, then classes. The root of a tree represents its part.
	parent := make([]int, len(s.Offerings)+len(s.Nodes)+len(s.Classes))
	for i := range parent {
		parent[i] = i
	}
	for c, class := range s.Classes {
		at := len(s.Offerings) + len(s.Nodes) + c
		for _, i := range class.Offerings {
			parent[root(parent, i)] = root(parent, at)
		}
		for _, v := range class.Nodes {
			parent[root(parent, len(s.Offerings)+v)] = root(parent, at)
		}
	}
	number := map[int]int{}
	for _, c := range pack.ClassOrder(s) {
		r := root(parent, len(s.Offerings)+len(s.Nodes)+c)
		if _, ok := number[r]; !ok && len(s.Classes[c].Pods) > 0 {
			number[r] = len(number)
		}
		of[c] = number[r]
	}
	return of
}
