package planner

import (
	"math"
	"slices"
)

// Limits on the search for columns. They are steps, not seconds, so that a plan is the same on any machine.
const (
	// maxRounds of new columns; twenty shapes converge in about half of them.
	maxRounds = 80
	// maxPivots of one re-optimisation.
	maxPivots = 400
	// pricingSteps of one knapsack: the best load is mostly found in the first ten, the rest tightens the bound.
	pricingSteps = 1500
	// proofSteps is what the last duals get instead, so many times.
	proofSteps = 5_000
	maxProofs  = 2
	// nodeRounds and nodeSteps bound what a proof spends on nodes: rounds times nodes, and the steps of all nodes in a round.
	nodeRounds = 2_000
	nodeSteps  = 20_000
	// pricingTilt is how often a knapsack leans its weights; a bound is worth more of them than more steps.
	pricingTilt = 12
	// maxDives is how often the relaxation is rounded and solved again, with so many rounds of columns of so many steps each.
	maxDives   = 24
	diveRounds = 3
	diveSteps  = 40
	// bigPivotBudget stands for rows³: how much exact arithmetic a plan may cost before the rounds are cut.
	bigPivotBudget = 10_000_000
)

// generate solves the relaxation for the demand: columns are added while some machine can be filled with more than its
// price is worth. It returns the master, whose columns and values guide the rest, and the best proven bound that it met on the price
// of any plan for the placed pods, of which the demand is a part.
func (m *mixer) generate(demand, placed load, seeds []machine) (*master, int64) {
	g := newMaster(m.problem, demand)
	for _, x := range seeds {
		g.add(column(x))
	}
	var bound int64
	rounds := maxRounds
	if n := len(g.rows); n > 0 {
		rounds = min(rounds, max(10, bigPivotBudget/(n*n*n)))
	}
	if n := len(m.nodes); n > 0 {
		rounds = min(rounds, max(4, nodeRounds/n))
	}
	proofs := maxProofs
	for range rounds {
		g.solve(maxPivots)
		known := len(g.columns)
		bound = max(bound, m.farley(g.values, placed, pricingSteps, g.add))
		if len(g.columns) == known && proofs > 0 {
			proofs--
			// Nothing more to buy was found; a longer search may prove that there is nothing.
			bound = max(bound, m.farley(g.values, placed, proofSteps, g.add))
		}
		if len(g.columns) == known {
			break
		}
	}
	return g, bound
}

// farley returns a lower bound on the price of any plan for the placed pods, from any worths of pods whatsoever: the pods are worth V,
// the nodes can hold U of it at most, and a machine of offer t at most u[t]; so a plan launches machines for V−U, and
// pays at least the least price[t]/u[t] for each unit of it. Loads that are worth more than their machine go to found.
func (m *mixer) farley(values []int64, placed load, steps int, found func(column)) int64 {
	value := worth(values, placed)
	for _, k := range m.noded {
		k.price(values, placed, pricingTilt)
		_, upper := k.search(placed, min(steps, nodeSteps/len(m.noded)), 0)
		value -= upper
	}
	best, most := -1, int64(0)
	for t, k := range m.offered {
		price := m.offers[t].price * valueScale
		k.price(values, placed, pricingTilt)
		v, upper := k.search(placed, steps, price)
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

// round buys the whole machines of the relaxation, or, where there are none, one of the column of which it buys most. It reports
// whether it bought any.
func (m *mixer) round(s *solution, g *master, limits []usage) bool {
	whole, most := g.whole()
	if len(whole) == 0 && most >= 0 {
		whole = map[int]int32{most: 1}
	}
	bought := false
	for c := range g.columns {
		o := &m.offers[g.columns[c].offer]
		for n := whole[c]; n > 0 && limits[o.pool].admits(o.uses); n-- {
			l := g.columns[c].load.within(s.left)
			if l.empty() {
				break
			}
			limits[o.pool].launch(o.uses)
			s.machines = append(s.machines, machine{g.columns[c].offer, l})
			s.left.add(l, -1)
			bought = true
		}
	}
	return bought
}

// dive rounds the relaxation, solves it again for what waits still, and so on to the end. On the way it tries what the short
// cuts make of the rest: to buy by worth, and a small branch and bound. It returns the best of all.
func (m *mixer) dive(base *solution, g *master) *solution {
	var best *solution
	limits := slices.Clone(m.limits)
	s := base.clone()
	for range maxDives {
		values := m.guide(g.values)
		if !m.round(s, g, limits) {
			break
		}
		done := s.clone()
		after := slices.Clone(limits)
		if t := (rebuy{mixer: m, values: values, limits: after, steps: diveSteps, best: cost{left: math.MaxInt64}}); t.run(done.left) {
			done.machines, done.left = append(done.machines, t.kept...), t.left
			m.downsize(done)
		}
		if best == nil || done.cost(m.problem).less(best.cost(m.problem)) {
			best = done
		}
		if s.left.empty() {
			break
		}
		next := newMaster(m.problem, s.left)
		for _, c := range g.columns {
			if l := c.load.within(s.left); !l.empty() {
				next.add(column{c.offer, l})
			}
		}
		g = next
		g.solve(maxPivots)
		for range diveRounds {
			if !m.extend(g, s.left, diveSteps) {
				break
			}
			g.solve(maxPivots)
		}
	}
	if best == nil {
		return base
	}
	return best
}

// extend adds, for each offer, the load that is worth most beyond its price, and reports whether there was any.
func (m *mixer) extend(g *master, demand load, steps int) bool {
	known := len(g.columns)
	for t, k := range m.offered {
		price := m.offers[t].price * valueScale
		k.price(g.values, demand, 4)
		if v, _ := k.search(demand, steps, price); v > price+price/1000 {
			g.add(column{t, slices.Clone(k.best)})
		}
	}
	return len(g.columns) > known
}
