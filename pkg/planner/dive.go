package planner

import (
	"math"
	"slices"
)

// Limits on dives: how often one rounds the relaxation and solves it again, with so many rounds of columns of so many steps each.
const (
	maxDives   = 24
	diveRounds = 3
	diveSteps  = 40
)

// dive rounds the relaxation, solves it again for what waits still, and so on to the end. On the way it tries what the short
// cuts make of the rest: to buy by worth, and a small branch and bound.
//
// Where the proof has found that so many machines of a kind are needed at least, it begins with a relaxation that buys as many, and unless the machines are
// many dives from the one that does not as well: the two lead to different plans.
func (h *hunt) dive(slice int64) {
	h.side.met.turns = nil
	if len(h.side.cuts) > 0 {
		g := h.side.narrowed(h.side.g, h.side.base)
		h.side.ctx.reoptimise(g)
		if h.side.diveFrom(g, slice); h.side.many() {
			return
		}
	}
	h.side.diveFrom(h.side.g, slice)
}

// turn is where a dive chooses: the relaxation for what a plan leaves buys no whole machine, so it buys one of the column with the largest fraction.
type turn struct {
	g      *master
	s      *solution
	limits []usage
}

// diveFrom is dive from a given relaxation.
func (h *half) diveFrom(g *master, slice int64) {
	h.descend(turn{g, h.base.clone(), slices.Clone(h.ctx.problem.limits)}, false, slice)
}

// turnOff spends a slice, at most, on dives that go on from the turns of those of the round, the first turns first, each with the second choice there:
// the first choices decide most, and are as often wrong as others.
func (h *hunt) turnOff(slice int64) {
	for until := h.side.ctx.effort.left - slice; len(h.side.met.turns) > 0 && h.side.ctx.effort.left > until && !h.side.ctx.effort.done() && !h.side.closed(); {
		next := h.side.met.turns[0]
		h.side.met.turns = h.side.met.turns[1:]
		h.side.descend(next, true, h.side.ctx.effort.left-until)
	}
}

// descend dives from a place on. A dive ends where it has become as dear as the best plan, one that turns off there already where its relaxation has.
func (h *half) descend(from turn, off bool, slice int64) {
	g, s, limits := from.g, from.s, from.limits
	until := h.ctx.effort.left - slice
	for level := range maxDives {
		values := h.ctx.guide(g.values)
		if h.ctx.effort.left <= until || h.ctx.effort.done() || !h.choose(g, s, limits, off, level) {
			return
		}
		room := h.room(s)
		if room.left == 0 && room.price <= 0 {
			return
		}
		t := newRebuy(h.ctx, values, slices.Clone(limits), diveSteps, room)
		if t.run(s.left) {
			done := s.clone()
			done.machines, done.left = slices.Concat(s.machines, t.kept), t.left
			h.met.machines(t.kept)
			h.ctx.downsize(done)
			h.best = better(h.ctx.problem, h.best, done)
		}
		if s.left.empty() || h.closed() {
			return
		}
		g = h.diveColumns(h.narrowed(g, s), s)
		if room = h.room(s); off && room.left == 0 && int64(g.total()) >= room.price {
			return
		}
	}
}

// room is what a plan that is cheaper than the best one may cost beside what it has so far.
func (h *half) room(s *solution) cost {
	best, so := h.best.cost(h.ctx.problem), s.cost(h.ctx.problem)
	if best.left > 0 {
		return cost{left: math.MaxInt64}
	}
	return cost{price: best.price - so.price, machines: best.machines - so.machines}
}

// diveColumns solves a relaxation of a dive, with a few more columns.
func (h *half) diveColumns(g *master, s *solution) *master {
	h.ctx.reoptimise(g)
	for range diveRounds {
		found := h.ctx.priceAll(g.values, s.left, care{steps: diveSteps}, func(t int) int64 { return above(h.ctx.problem.offers[t].price, 1000) })
		h.met.found(found)
		if !h.ctx.take(g, found) {
			break
		}
		h.ctx.reoptimise(g)
	}
	return g
}

// choose buys the whole machines of the relaxation, or, where there are none, one of the column of which it buys most, of the second where a dive turns
// off. It reports whether it bought any.
func (h *half) choose(g *master, s *solution, limits []usage, off bool, level int) bool {
	whole, parts := g.whole()
	if len(whole) == 0 && len(parts) > 0 {
		choice := 0
		switch {
		case off && level == 0:
			choice = 1
		case !off && len(parts) > 1 && h.met != nil:
			h.ctx.keep(g)
			h.met.turns = append(h.met.turns, turn{g, s.clone(), slices.Clone(limits)})
		}
		whole = map[int]int32{parts[choice]: 1}
	}
	bought := false
	for c := range g.columns {
		bought = h.ctx.launch(s, g.columns[c], whole[c], limits) || bought
	}
	return bought
}

// met is what dives met: the loads for what other machines left, which cost too much in a relaxation of all pods, but plans are composed of them as
// well, and the turns of the dives of a round. A nil one keeps nothing.
type met struct {
	turns   []turn
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

// add adds a load unless it is there.
func (m *met) add(c column) {
	if m == nil {
		return
	}
	if key := c.key(); !m.known[key] {
		m.known[key] = true
		m.columns = append(m.columns, c)
	}
}
