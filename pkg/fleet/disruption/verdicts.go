package disruption

import (
	"slices"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
)

// verdicts records which machines that are marked as underutilized should keep their marks.
type verdicts struct {
	// stand has the reason for each mark that stays, by NodeClaim. judged has all machines that were checked.
	stand  map[string]*reason.Candidate
	judged []string
	// pending are the machines for which there was no time. The next check begins with them.
	pending []string
}

// standing checks whether removing the machines that are marked as underutilized still saves, because prices change and pods arrive. A machine whose
// removal does not save stays, and the others are checked together with it, one by one. Each check makes a plan for the whole cluster, so standing ends
// after the first check for which stop returns true. Marks that were not checked keep their earlier verdict, and new ones stay.
func (f *fleet) standing(sim simulator, before verdicts, stop func() bool) verdicts {
	marked := slices.DeleteFunc(markedForCost(f.machines), func(name string) bool { return !f.named(name).NodePool.MovesPods })
	now := verdicts{stand: map[string]*reason.Candidate{}, judged: slices.Clone(marked)}
	if len(before.pending) > 0 { // This check continues the last one, so marks that were rejected then stay rejected.
		marked = slices.DeleteFunc(marked, func(name string) bool {
			_, stood := before.stand[name]
			return !stood && slices.Contains(before.judged, name)
		})
	}
	first := slices.DeleteFunc(slices.Clone(before.pending), func(name string) bool { return !slices.Contains(marked, name) })
	order := slices.Concat(first, slices.DeleteFunc(slices.Clone(marked), func(name string) bool { return slices.Contains(first, name) }))
	for _, name := range marked {
		verdict, stood := before.stand[name]
		if !stood {
			verdict = reason.Cheaper(0, 1)
		}
		if stood || !slices.Contains(before.judged, name) {
			now.stand[name] = verdict
		}
	}
	now.pending = order
	for len(now.pending) > 0 {
		if now.pending = f.cover(sim, marked, now); len(now.pending) == 0 {
			break
		}
		name := now.pending[0]
		others := slices.DeleteFunc(slices.Clone(marked), func(other string) bool { return other == name })
		saving, why := sim.saving(others, []string{name})
		if why == "" && saving > 0 {
			now.stand[name] = reason.Cheaper(saving, 1)
			now.pending = now.pending[1:]
		} else {
			// The verdicts before it assumed that it leaves, so they must be checked again.
			delete(now.stand, name)
			order = slices.DeleteFunc(order, func(other string) bool { return other == name })
			marked, now.pending = others, order
		}
		if stop() {
			break
		}
	}
	return now
}

// cover judges the marks that a single plan for all of them can answer, and returns the remaining pending marks. A machine that costs more than
// everything that is launched or stays for the pods of the marked machines saves in any case.
func (f *fleet) cover(sim simulator, marked []string, v verdicts) []string {
	price, why := sim.together(marked)
	if why != "" {
		return v.pending
	}
	return slices.DeleteFunc(slices.Clone(v.pending), func(name string) bool {
		saving := planner.MicroUSD(f.named(name).MicroUSDPerHour()) - price
		if saving > 0 {
			v.stand[name] = reason.Cheaper(saving, 1)
		}
		return saving > 0
	})
}
