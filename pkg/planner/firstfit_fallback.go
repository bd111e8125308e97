package planner

import "slices"

// orFirstFit returns what was found, or the plan of [FirstFit] where that one is better, so that no plan costs more than Karpenter's packing does. It is
// rarely needed: limits that are almost used up, or a search that was ended early.
func orFirstFit(s Snapshot, found Plan) Plan {
	if found.Price == found.Bound && len(found.Unplaced) == 0 {
		return found
	}
	first := FirstFit(s)
	if !costOf(first).less(costOf(found)) {
		return found
	}
	samePods := slices.EqualFunc(first.Unplaced, found.Unplaced, func(a, b Unplaced) bool { return a.Pod == b.Pod })
	if samePods {
		first.Bound, first.Proof = min(found.Bound, first.Price), found.Proof
	}
	return first
}

func costOf(p Plan) cost {
	return cost{left: int64(len(p.Unplaced)), price: int64(p.Price), machines: int64(len(p.Launches))}
}
