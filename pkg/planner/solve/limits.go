package solve

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// withinLimits returns the plan of a snapshot that [search.Solve] finds. If limits of pools decide about it, it searches again with the rest of the effort and with the limits as
// stocks: otherwise neither the relaxation nor the bound knows them. Most limits are never reached, and with their rows, a search is slower.
func (with Solver) withinLimits(s planner.Snapshot) planner.Plan {
	p, e := pack.Compile(s), effort.New(with.Effort, with.Stop)
	plan := with.solve(s, p, e)
	if plan.Price == plan.Bound && len(plan.Unplaced) == 0 || e.Done() || !limitsDecide(s, p, plan) {
		return plan
	}
	with.First = nil
	again := with.solve(s, pack.Compile(limitsAsStocks(s)), e)
	if a, b := costOf(again), costOf(plan); a.Less(b) || a == b && again.Bound > plan.Bound {
		plan, again = again, plan
	}
	if again.Bound > plan.Bound && samePods(again, plan) {
		plan.Bound = again.Bound
	}
	return plan
}

// solve returns the plan of a problem that is the one of the snapshot, or has its limits as stocks.
func (with Solver) solve(s planner.Snapshot, p *pack.Problem, e *effort.Budget) planner.Plan {
	var first func(*search.Solution)
	if with.First != nil {
		first = func(found *search.Solution) { with.First(search.PlanOf(p, found)) }
	}
	best, bound := search.Solve(p, e, first)
	p.Snapshot = s // The reasons of pods without a place name limits, not stocks.
	plan := search.PlanOf(p, best)
	plan.Bound = min(plan.Price, planner.MicroUSD(bound))
	return plan
}

// limitsAsStocks returns a snapshot with a further stock for each limit of a pool, from which the offerings of the pool draw what they count. The limits stay. Its plans are
// those of the snapshot. It is for a search, and not valid as Validate means it: the names of the stocks repeat.
func limitsAsStocks(s planner.Snapshot) planner.Snapshot {
	pools := make([]int, len(s.Pools))
	for i := range pools {
		pools[i] = i
	}
	slices.SortStableFunc(pools, func(a, b int) int { return cmp.Compare(s.Pools[a].Name, s.Pools[b].Name) })
	s.Stocks, s.Offerings = slices.Clone(s.Stocks), slices.Clone(s.Offerings)
	for _, pool := range pools {
		for _, amount := range []func(planner.Physical) int64{
			func(p planner.Physical) int64 { return p.MilliCPU },
			func(p planner.Physical) int64 { return p.MemoryBytes },
			func(p planner.Physical) int64 { return p.GPUs },
			func(p planner.Physical) int64 { return p.Replicas },
			func(p planner.Physical) int64 { return p.Nodes },
		} {
			left := amount(s.Pools[pool].Remaining)
			if left < 0 || left > planner.MaxAmount {
				continue
			}
			for i := range s.Offerings {
				if o := &s.Offerings[i]; o.Pool == pool && amount(o.Physical) > 0 {
					o.Draws = append(slices.Clip(o.Draws), planner.Draw{Stock: len(s.Stocks), Amount: amount(o.Physical)})
				}
			}
			s.Stocks = append(s.Stocks, planner.Stock{Name: s.Pools[pool].Name, Left: left})
		}
	}
	return s
}

// limitsDecide reports whether the limit of some pool is so near that it does not allow all machines of a plan and another one.
func limitsDecide(s planner.Snapshot, p *pack.Problem, plan planner.Plan) bool {
	if !p.Limited {
		return false
	}
	left := make([]amount.Usage, len(s.Pools))
	for i := range left {
		left[i] = p.Limits.Pool(i)
		for _, l := range plan.Launches {
			left[i].Launch(amount.UsageOf(s.Offerings[l.Offering].Physical))
		}
	}
	return slices.ContainsFunc(p.Offers, func(o pack.Offer) bool { return !left[o.Pool].Admits(o.Uses) })
}
