package search

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on dives: how often a dive rounds the relaxation and solves it again, and the rounds of column generation each time with the steps of each.
const (
	maxDives   = 24
	diveRounds = 3
	diveSteps  = 40
)

// dive rounds the relaxation, solves it again for the remaining pods, and repeats this to the end. At each step, it also completes the plan with heuristics:
// buying by worth, and a short branch and bound.
//
// If the proof requires a minimum number of machines of a kind, it starts with a relaxation that has these cuts. Unless there are many machines, it also dives
// from the relaxation without them, because the two lead to different plans.
func (h *primal) dive(slice int64) {
	if len(h.state.cuts) > 0 {
		g := h.state.residual(h.state.g, h.state.base)
		h.state.ctx.reoptimise(g)
		if h.state.diveFrom(g, slice); h.state.many() {
			return
		}
	}
	h.state.diveFrom(h.state.g, slice)
}

// diveFrom dives from a given relaxation. It ends when the plan costs as much as the best one.
func (h *state) diveFrom(g *Master, slice int64) {
	s, limits := h.base.clone(), h.ctx.Problem.Limits.Clone()
	until := h.ctx.Effort.Left - slice
	for range maxDives + g.relaxed {
		values := h.ctx.ChoiceValues(g.Values)
		if h.ctx.Effort.Left <= until || h.ctx.Effort.Done() || !h.choose(g, s, limits) {
			return
		}
		room := h.room(s)
		if room.Left == 0 && room.Price <= 0 {
			return
		}
		done := s.clone()
		h.ctx.settle(done, values)
		t := NewRepair(h.ctx, values, limits.Clone(), diveSteps, room)
		if t.Run(done.Left) {
			done.Machines, done.Left = slices.Concat(s.Machines, t.Kept), t.Left
			h.pool.machines(t.Kept)
			h.ctx.downsize(done)
			h.best = better(h.ctx.Problem, h.best, done)
		}
		if s.Left.Empty() || h.closed() {
			return
		}
		g = h.diveColumns(h.residual(g, s), s)
	}
}

// room returns what a plan that is cheaper than the best one may cost in addition to its machines so far.
func (h *state) room(s *Solution) pack.Cost {
	best, so := h.best.cost(h.ctx.Problem), s.cost(h.ctx.Problem)
	if best.Left > 0 {
		return pack.Cost{Left: math.MaxInt64}
	}
	return pack.Cost{Price: best.Price - so.Price, Machines: best.Machines - so.Machines}
}

// diveColumns solves a relaxation of a dive with a few more columns.
func (h *state) diveColumns(g *Master, s *Solution) *Master {
	h.ctx.reoptimise(g)
	for range diveRounds {
		asked := h.ctx.Asked(g)
		found := h.ctx.PriceAll(g.Values, s.Left, pricing.Effort{Steps: diveSteps}, func(t int) int64 { return Above(asked(t), 1000) })
		h.pool.found(found)
		fresh := h.ctx.AddColumns(g, found)
		nodes := h.ctx.priceNodeGroups(g, g.Values, s.Left, pricing.Effort{Steps: diveSteps}, 1000)
		if !addNodeColumns(g, nodes) && !fresh {
			break
		}
		h.ctx.reoptimise(g)
	}
	return g
}

// choose buys the whole machines of the relaxation. If there are none, it buys one machine of the column with the largest fraction. It reports whether it
// bought any.
func (h *state) choose(g *Master, s *Solution, limits pack.Limits) bool {
	whole, parts := g.whole()
	if len(whole) == 0 && len(parts) > 0 {
		whole[parts[0]] = 1
	}
	bought := false
	for c := range g.columns {
		bought = h.ctx.launchColumn(s, g.columns[c], whole[c], limits) || bought
	}
	return bought
}

// machines adds the loads of machines.
func (m *columnPool) machines(of []Machine) {
	for _, x := range of {
		m.add(column(x))
	}
}

// found adds the loads that pricing found.
func (m *columnPool) found(by []pricing.Priced) {
	for t := range by {
		for _, l := range by[t].Loads {
			m.add(column{t, l})
		}
	}
}

// add adds a load unless the pool has it.
func (m *columnPool) add(c column) {
	if m == nil {
		return
	}
	if key := c.key(); !m.known[key] {
		m.known[key] = true
		m.columns = append(m.columns, c)
	}
}
