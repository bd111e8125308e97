package planner

import "slices"

// firstFitPods is how many pods, of those that rules speak of, [orFirstFit] has placed one by one.
const firstFitPods = 3000

// orFirstFit returns what was found, or the plan of [FirstFit] where that one is better, so that no plan costs more than Karpenter's packing does. It is
// rarely needed: limits that are almost used up, rules that hardly leave a place, a search that was ended early.
func orFirstFit(s Snapshot, found Plan) Plan {
	if found.Price == found.Bound && len(found.Unplaced) == 0 || !onlyPrice(s) {
		return found
	}
	f := newFirstFit(s)
	pods := 0
	for _, b := range f.batches {
		if f.ruled(b.class) {
			pods += len(b.pods)
		}
	}
	if pods > firstFitPods {
		return found
	}
	first := f.pack()
	if !costOf(first).less(costOf(found)) || len(f.headcounts) > 0 && Check(s, first) != nil {
		return found
	}
	samePods := slices.EqualFunc(first.Unplaced, found.Unplaced, func(a, b Unplaced) bool { return a.Pod == b.Pod })
	if samePods {
		first.Bound, first.Proof, first.Unplaced = min(found.Bound, first.Price), found.Proof, found.Unplaced
	}
	return first
}

// onlyPrice reports whether of two plans for as many pods the cheaper is the better, whichever the pods: nobody is more important, no pool
// heavier, and nothing is wished for.
func onlyPrice(s Snapshot) bool {
	for _, p := range s.Pools {
		if len(p.MinValues) > 0 || p.Weight != s.Pools[0].Weight {
			return false
		}
	}
	for _, c := range s.Classes {
		if len(c.Wishes) > 0 || c.Priority != s.Classes[0].Priority {
			return false
		}
	}
	return true
}

func costOf(p Plan) cost {
	return cost{left: int64(len(p.Unplaced)), price: int64(p.Price), machines: int64(len(p.Launches))}
}
