package planner

import "slices"

// Limits on the search for columns. They are steps, not seconds, so that a plan is the same on any machine.
const (
	// maxRounds of new columns; twenty shapes converge in about half of them.
	maxRounds = 80
	// maxPivots of one re-optimisation.
	maxPivots = 400
	// pricingSteps of one knapsack: the best load is mostly found in the first ten, the rest tightens the bound.
	pricingSteps = 1500
	// pricingTilt is how often a knapsack leans its weights; a bound is worth more of them than more steps.
	pricingTilt = 12
	// bigPivotBudget stands for rows³: how much exact arithmetic a plan may cost before the rounds are cut.
	bigPivotBudget = 6_000_000
)

// generate solves the relaxation for the demand: columns are added while some machine can be filled with more than its
// price is worth. It returns the master, whose columns and values guide the rest, and the best proven bound that it met on the price
// of any plan for the placed pods, of which the demand is a part.
func (m *mixer) generate(demand, placed load, seeds []machine) (*master, int64) {
	g := newMaster(m.problem, demand)
	for _, x := range seeds {
		g.add(column{x.offer, x.load})
	}
	var bound int64
	rounds := maxRounds
	if n := len(g.rows); n > 0 {
		rounds = min(rounds, max(10, bigPivotBudget/(n*n*n)))
	}
	for range rounds {
		g.solve(maxPivots)
		known := len(g.columns)
		bound = max(bound, m.farley(g.values, placed, func(c column) { g.add(c) }))
		if len(g.columns) == known {
			break
		}
	}
	return g, bound
}

// farley returns a lower bound on the price of any plan for the placed pods, from any worths of pods whatsoever: the pods are worth V,
// the nodes can hold U of it at most, and a machine of offer t at most u[t]; so a plan launches machines for V−U, and
// pays at least the least price[t]/u[t] for each unit of it. Loads that are worth more than their machine go to found.
func (m *mixer) farley(values []int64, placed load, found func(column)) int64 {
	value := worth(values, placed)
	for _, k := range m.noded {
		k.price(values, placed, pricingTilt)
		_, upper := k.search(placed, pricingSteps, 0)
		value -= upper
	}
	best, most := -1, int64(0)
	for t, k := range m.offered {
		price := m.offers[t].price * valueScale
		k.price(values, placed, pricingTilt)
		v, upper := k.search(placed, pricingSteps, price)
		if best < 0 || compareProducts(upper, m.offers[best].price, most, m.offers[t].price) > 0 {
			best, most = t, upper
		}
		// A gain below a ten-thousandth of the price is not worth a round.
		if v > price+price/10_000 {
			found(column{t, slices.Clone(k.best)})
		}
	}
	if best < 0 || value <= 0 {
		return 0
	}
	return mulDivUp(value, m.offers[best].price, most)
}

// round buys the whole machines of the relaxation and leaves the fractions waiting.
func (m *mixer) round(s *solution, g *master, limits []usage) {
	whole := g.whole()
	for c := range g.columns {
		o := &m.offers[g.columns[c].offer]
		for n := whole[c]; n > 0 && !s.left.empty() && limits[o.pool].admits(o.uses); n-- {
			l := slices.Clone(g.columns[c].load)
			for k := range l {
				l[k] = min(l[k], s.left[k])
			}
			if l.empty() {
				break
			}
			limits[o.pool].launch(o.uses)
			s.machines = append(s.machines, machine{g.columns[c].offer, l})
			s.left.add(l, -1)
		}
	}
}
