package planner

import "slices"

// firstFitPods is how many pods, of those that rules speak of, [orFirstFit] has placed one by one.
const firstFitPods = 3000

// orFirstFit returns what was found, or the plan of [FirstFit] where that one is better, so that no plan costs more than Karpenter's packing does. It is
// rarely needed: limits that are almost used up, rules that hardly leave a place, a search that was ended early.
//
// Once the search is to end, it is done for small snapshots only, and machines are not sorted for every pod.
func orFirstFit(s Snapshot, found Plan, stop func() bool) Plan {
	if found.Price == found.Bound && len(found.Unplaced) == 0 || !onlyPrice(s) {
		return found
	}
	late := stop != nil && stop()
	if pods := podsOf(s); late && pods*(len(s.Nodes)+len(found.Launches)+1) > lateFirstFitSteps {
		return found
	}
	f := newFirstFit(s)
	switch {
	case late:
		f.steps = 0
	case stop != nil:
		f.steps = min(f.steps, 10*lateFirstFitSteps)
	}
	if pods := f.ruledPods(); pods > firstFitPods || stop != nil && pods*(len(s.Nodes)+len(found.Launches)+1) > 2*lateFirstFitSteps {
		return found
	}
	first := f.pack()
	if !costOf(first).less(costOf(found)) || len(f.headcounts) > 0 && Check(s, first) != nil {
		return found
	}
	if late {
		first.postpone()
	}
	samePods := slices.EqualFunc(first.Unplaced, found.Unplaced, func(a, b Unplaced) bool { return a.Pod == b.Pod })
	if samePods {
		first.Bound, first.Proof, first.Unplaced = min(found.Bound, first.Price), found.Proof, found.Unplaced
	}
	return first
}

// ruledPods is how many pods a rule speaks of.
func (f *firstFit) ruledPods() int {
	pods := 0
	for _, b := range f.batches {
		if f.ruled(b.class) {
			pods += len(b.pods)
		}
	}
	return pods
}

// postpone leaves pods that a rule left without a place for the next round: the first fit does not look for another place of those that others follow.
func (p *Plan) postpone() {
	for i := range p.Unplaced {
		if p.Unplaced[i].Reason == ReasonRule {
			p.Unplaced[i].Refusal = NextRound
		}
	}
}

// lateFirstFitSteps is how many pods times machines [orFirstFit] looks at once the search is to end: some hundredths of a second.
const lateFirstFitSteps = 100_000

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
