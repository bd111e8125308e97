package planner

import (
	"math"
	"slices"
)

// Limits on the search for columns. They are steps, not seconds, so that a plan is the same on any machine.
const (
	// maxPivots of one re-optimisation.
	maxPivots = 600
	// pivotCost is what so many row operations of a pivot count, in steps.
	pivotCost = 400
	// maxDives is how often the relaxation is rounded and solved again, with so many rounds of columns of so many steps each.
	maxDives   = 24
	diveRounds = 3
	diveSteps  = 40
)

// pricingCare is how offers are priced for columns: the best load is mostly found at once; more care follows when less finds nothing.
var pricingCare = []care{{steps: 60}, {600, 60}, {600, 300}, {4000, 1500}}

// mostCare is the least slice in which offers are priced with the most care for columns: with that a single round may take more than all that follows has.
const mostCare = 100_000

// columns solves the relaxation for what no node takes: columns are added while some machine can be filled with more than its price is worth.
// It spends the budget at most, a part of the slice of the round.
func (h *hunt) columns(slice, budget int64) {
	if h.g == nil {
		h.g = newMaster(h.problem, h.base.left)
		for _, x := range h.best.machines {
			h.g.add(column(x))
		}
		h.reoptimise(h.g)
	} else if pivots := h.g.pivots; h.ready {
		// The proof may have found columns since.
		h.reoptimise(h.g)
		h.ready = h.g.pivots == pivots
	}
	for level, until := 0, h.effort.left-budget; !h.ready && h.effort.left > until && !h.effort.done(); {
		found := h.priceAll(h.g.values, h.base.left, pricingCare[level], func(t int) int64 { return above(h.offers[t].price, 10_000) })
		if h.take(h.g, found) {
			h.reoptimise(h.g)
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
	m.effort.spend(int64(g.solve(maxPivots)) * (1 + n*n/pivotCost))
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
		bought = m.launch(s, g.columns[c], whole[c], limits) || bought
	}
	return bought
}

// launch buys machines loaded as a column says, as far as pods wait and the limits admit, and reports whether it bought any. Where too few pods wait for
// a load, and for a column that was made smaller before, GPUs have to be found anew, and it may be that none are.
func (m *mixer) launch(s *solution, c column, times int32, limits []usage) bool {
	bought, o := false, &m.offers[c.offer]
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

// dive rounds the relaxation, solves it again for what waits still, and so on to the end. On the way it tries what the short
// cuts make of the rest: to buy by worth, and a small branch and bound.
//
// Where the proof has found that so many machines of a kind are needed at least, it begins with a relaxation that buys as many, and unless the machines are
// many dives from the one that does not as well: the two lead to different plans.
func (h *hunt) dive(slice int64) {
	if len(h.cuts) > 0 {
		g := h.narrowed(h.g, h.base)
		h.reoptimise(g)
		if h.diveFrom(g, slice); h.many() {
			return
		}
	}
	h.diveFrom(h.g, slice)
}

// diveFrom is dive from a given relaxation.
func (h *half) diveFrom(g *master, slice int64) {
	limits, s := slices.Clone(h.limits), h.base.clone()
	until := h.effort.left - slice
	for range maxDives {
		values := h.guide(g.values)
		if h.effort.left <= until || h.effort.done() || !h.round(s, g, limits) {
			return
		}
		t := newRebuy(h.mixer, values, slices.Clone(limits), diveSteps, cost{left: math.MaxInt64})
		if t.run(s.left) {
			done := s.clone()
			done.machines, done.left = slices.Concat(s.machines, t.kept), t.left
			h.met.machines(t.kept)
			h.downsize(done)
			h.best = h.better(h.best, done)
		}
		if s.left.empty() || h.closed() {
			return
		}
		g = h.narrowed(g, s)
		h.reoptimise(g)
		for range diveRounds {
			found := h.priceAll(g.values, s.left, care{steps: diveSteps}, func(t int) int64 { return above(h.offers[t].price, 1000) })
			h.met.found(found)
			if !h.take(g, found) {
				break
			}
			h.reoptimise(g)
		}
	}
}

// narrowed is the relaxation for what a plan leaves, with the columns of another one as far as they go, and with the cuts of the proof as far as
// the machines of the plan do not keep them. It is good until the one after the next is asked for.
func (h *half) narrowed(g *master, s *solution) *master {
	next := h.narrow[0]
	h.narrow[0], h.narrow[1] = h.narrow[1], next
	next.begin(h.problem, s.left)
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

// met are the loads that dives met for what other machines left: in a relaxation of all pods they cost too much, but plans are composed of them as well.
type met struct {
	columns []column
	known   map[string]bool
}

// machines adds the loads of machines.
func (m *met) machines(of []machine) {
	for _, x := range of {
		m.add(column(x))
	}
}

// found adds the loads that pricing found.
func (m *met) found(by []priced) {
	for t := range by {
		for _, l := range by[t].loads {
			m.add(column{t, l})
		}
	}
}

// add adds a load unless it is there. A nil list takes none.
func (m *met) add(c column) {
	if m == nil {
		return
	}
	if key := c.key(); !m.known[key] {
		m.known[key] = true
		m.columns = append(m.columns, c)
	}
}
