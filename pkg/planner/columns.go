package planner

// Limits on the search for columns. They are steps, not seconds, so that a plan is the same on any machine.
const (
	// maxPivots of one re-optimisation.
	maxPivots = 600
	// pivotCost is what so many row operations of a pivot count, in steps.
	pivotCost = 400
)

// pricingCare is how offers are priced for columns: the best load is mostly found at once; more care follows when less finds nothing.
var pricingCare = []care{{steps: 60}, {600, 60}, {600, 300}, {4000, 1500}}

// mostCare is the least slice in which offers are priced with the most care for columns: with that a single round may take more than all that follows has.
const mostCare = 100_000

// columns solves the relaxation for what no node takes: columns are added while some machine can be filled with more than its price is worth.
// It spends the budget at most, a part of the slice of the round.
func (h *hunt) columns(slice, budget int64) {
	if h.side.g == nil {
		h.side.g = newMaster(h.side.ctx.problem, h.side.base.left)
		for _, x := range h.side.best.machines {
			h.side.g.add(column(x))
		}
		h.side.ctx.reoptimise(h.side.g)
	} else if pivots := h.side.g.pivots; h.ready {
		// The proof may have found columns since.
		h.side.ctx.reoptimise(h.side.g)
		h.ready = h.side.g.pivots == pivots
	}
	for level, until := 0, h.side.ctx.effort.left-budget; !h.ready && h.side.ctx.effort.left > until && !h.side.ctx.effort.done(); {
		found := h.side.ctx.priceAll(h.side.g.values, h.side.base.left, pricingCare[level], func(t int) int64 { return above(h.side.ctx.problem.offers[t].price, 10_000) })
		if h.side.ctx.take(h.side.g, found) {
			h.side.ctx.reoptimise(h.side.g)
			level = 0
			continue
		}
		level++
		if level == len(pricingCare)-1 && slice < mostCare {
			return
		}
		h.ready = level == len(pricingCare)
	}
}

// take adds the loads that were found as columns, and reports whether any was new.
func (m *mixer) take(g *master, found []priced) bool {
	fresh := false
	for t := range found {
		for _, l := range found[t].loads {
			if g.add(column{t, l}) {
				fresh = true
			}
		}
	}
	return fresh
}

// reoptimise solves the relaxation with the columns that it has.
func (m *mixer) reoptimise(g *master) {
	n := int64(len(g.rows))
	m.effort.spend(int64(g.solve(maxPivots, m.effort.stopped)) * (1 + n*n/pivotCost))
}

// launch buys machines loaded as a column says, as far as pods wait and the limits admit, and reports whether it bought any. Where too few pods wait for
// a load, and for a column that was made smaller before, GPUs have to be found anew, and it may be that none are.
func (m *mixer) launch(s *solution, c column, times int32, limits []usage) bool {
	bought, o := false, &m.problem.offers[c.offer]
	for ; times > 0 && limits[o.pool].admits(o.uses); times-- {
		l, whole := c.load, c.load.under(s.left)
		if !whole {
			l = l.within(s.left)
		}
		if l.empty() || (!bought || !whole) && !m.holds(c.offer, l) {
			break
		}
		limits[o.pool].launch(o.uses)
		s.machines = append(s.machines, machine{c.offer, l})
		s.left.add(l, -1)
		bought = true
	}
	return bought
}

// narrowed is the relaxation for what a plan leaves, with the columns of another one as far as they go, and with the cuts of the proof as far as
// the machines of the plan do not keep them. It is good until the one after the next is asked for, unless it is kept.
func (h *half) narrowed(g *master, s *solution) *master {
	next := h.ctx.narrow[0]
	h.ctx.narrow[0], h.ctx.narrow[1] = h.ctx.narrow[1], next
	next.begin(h.ctx.problem, s.left)
	next.expect(len(g.columns))
	for _, c := range g.columns {
		if c.load.under(s.left) {
			next.add(c)
		} else if l := c.load.within(s.left); !l.empty() {
			next.add(column{c.offer, l})
		}
	}
	if len(next.rows) == 0 {
		return next
	}
	for _, c := range h.cuts {
		for _, x := range s.machines {
			if c.serves[x.offer] {
				c.machines--
			}
		}
		if c.machines > 0 {
			next.require(c)
		}
	}
	return next
}

// keep has a relaxation be good for longer.
func (m *mixer) keep(g *master) {
	for i := range m.narrow {
		if m.narrow[i] == g {
			m.narrow[i] = &master{known: map[string]bool{}}
		}
	}
}
