package search

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Composed returns the first plan of a snapshot, and the plan that the restricted master composes from the columns.
func Composed(s planner.Snapshot) (first, composed planner.Plan) {
	p := pack.Compile(s)
	h := &primal{state: state{ctx: NewContext(p, effort.New(1<<30, nil)), pool: &columnPool{}}}
	h.state.base = h.state.ctx.base()
	h.state.best = h.state.base.clone()
	h.state.ctx.fill(h.state.best, h.state.ctx.alone)
	h.state.ctx.Buy(h.state.best, h.state.ctx.alone, p.Limits.Clone())
	first = PlanOf(p, h.state.best)
	h.columns(1<<20, 1<<20)
	h.restrictedMaster(1 << 20)
	return first, PlanOf(p, h.state.best)
}

// MostOnGPUs returns the maximum worth of a load of the first offering, where a pod of the k-th shape is worth worths[k]: by trying every load (most), by
// combining loads of single GPUs with the given number of parts (found), and the upper bound of that combination. It reports whether the combination applies to
// the machine.
func MostOnGPUs(s planner.Snapshot, worths []int64, parts int) (most, found, upper int64, ok bool) {
	p := pack.Compile(s)
	if len(p.Offers) == 0 {
		return 0, 0, 0, false
	}
	c := &p.Offers[0].Capacity
	k := pricing.NewKnapsack(p, c)
	g := pricing.NewGPURelaxation(p, k)
	if g == nil || !g.Combines {
		return 0, 0, 0, false
	}
	values, demand := worths[:len(p.Shapes)], p.Demand()
	l := newLattice(p, demand)
	for a := range l.states {
		if l.holds(p, c, a) {
			most = max(most, pack.Worth(values, l.loads[a]))
		}
	}
	x := pricing.Machine{Knapsack: k, GPUs: g}
	x.Knapsack.Price(values, demand)
	g.Bound(values, demand, 0)
	var out pricing.Priced
	upper = x.Combine(values, demand, parts, 0, &out, &pricing.Combination{})
	return most, out.Value, upper, true
}

// LaunchedParts fills the machine of the first offering in the given number of ways, and launches each load with all but one of its pods pending. It returns
// how many of these partial loads have no GPU assignment, and the first load that loses pods: they are neither pending nor on the GPUs of a launch.
func LaunchedParts(s planner.Snapshot, ways int) (without int, lost []int32) {
	p := pack.Compile(s)
	m := NewContext(p, effort.New(0, nil))
	var choice Sequence
	for range ways {
		whole := make(pack.Load, len(p.Shapes))
		m.room.Fill(p, &p.Offers[0].Capacity, whole)
		for range 400 {
			k := choice.Below(len(whole))
			whole[k] += m.room.Add(p, &p.Offers[0].Capacity, k, min(1, p.Demand()[k]-whole[k]))
		}
		if !m.holds(0, whole) {
			continue
		}
		for k := range whole {
			if whole[k] == 0 {
				continue
			}
			part := slices.Clone(whole)
			part[k]--
			if !m.holds(0, part) {
				without++
			}
			s := newSolution(p)
			s.Left = slices.Clone(part)
			m.launchColumn(s, column{0, whole}, 1, p.Limits.Clone())
			for _, x := range s.Machines {
				if s.Left.Add(x.Load, 1); !m.holds(x.Offer, x.Load) {
					return without, part
				}
			}
			if !slices.Equal(s.Left, part) {
				return without, part
			}
		}
	}
	return without, nil
}

// ByParts returns the first plan of a snapshot, and the plan that the search for many shapes makes of it without the methods for few, with the bound.
func ByParts(s planner.Snapshot, steps int64) (first, best planner.Plan) {
	p := pack.Compile(s)
	m := NewContext(p, effort.New(steps, nil))
	h := &primal{state: state{ctx: m, base: m.base()}}
	h.dual = &dual{state: h.state}
	filled := h.state.base.clone()
	m.fill(filled, m.alone)
	h.state.best = filled.clone()
	m.Buy(h.state.best, m.alone, p.Limits.Clone())
	first = PlanOf(p, h.state.best)
	h.startManyShapes()
	h.startRelaxation()
	h.smoothColumns(steps)
	bound := h.proven()
	best = PlanOf(p, h.state.best)
	best.Bound = planner.MicroUSD(bound)
	return first, best
}

// DearestAtLinearValues returns the greatest worth of a load at worths that come from prices of resources, relative to the price of its machine: the load and the
// offer for which the worth exceeds the price most, or reaches it most nearly. ok is false if there is none.
func DearestAtLinearValues(s planner.Snapshot, rounds int) (worth, price int64, ok bool) {
	p := pack.Compile(s)
	demand := p.Demand()
	if len(p.Shapes) == 0 || !isSmall(p, demand) {
		return 0, 0, false
	}
	values := NewContext(p, effort.New(0, nil)).linearValues(demand, rounds)
	l := newLattice(p, demand)
	for t := range p.Offers {
		if p.Offers[t].MayRunOut() {
			continue
		}
		for a := range l.states {
			if w := pack.Worth(values, l.loads[a]); l.holds(p, &p.Offers[t].Capacity, a) && (!ok || w-p.Offers[t].Price*pricing.Scale > worth-price) {
				worth, price, ok = w, p.Offers[t].Price*pricing.Scale, true
			}
		}
	}
	return worth, price, ok
}
