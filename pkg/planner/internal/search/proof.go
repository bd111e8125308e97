package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// proof drives the bound up. A search for the most valuable load that ends too soon leaves a mixture that might be worth more than the price of its
// machine; the relaxation of the proof takes such mixtures for columns, so that its worths move to where the searches can tell that no load is
// worth more than its machine.
type proof struct {
	g      *Master
	demand pack.Load // what is launched for
	placed pack.Load // what is placed
	level  int
	groups []group
	cuts   []cut

	// steady are the worths and the tolls of the best bound of this proof, and swung is whether to leave them aside once.
	bound          int64
	steady         []int64
	steadyCutDuals []int64
	swung          bool
}

// proofLevels are how offers are priced, and what part of a price a load has to be worth above it to matter.
var proofLevels = []struct {
	care pricing.Effort
	part int64
}{{pricing.Effort{Steps: 200, Parts: 60}, 400}, {pricing.Effort{Steps: 600, Parts: 300}, 1000}, {pricing.Effort{Steps: 2500, Parts: 1000}, 3000}, {pricing.Effort{Steps: 15_000, Parts: 2500}, 8000}}

// prepare begins a proof for what the best plan places, with its cuts, unless there is one.
func (h *dual) prepare() {
	h.renew()
	p := h.proof
	if p.g != nil || p.level == len(proofLevels) {
		return
	}
	p.g = h.relaxed(p)
	h.state.cuts = p.rows()
}

// relaxed is a relaxation for what a proof launches for, with its cuts.
func (h *dual) relaxed(p *proof) *Master {
	g := NewMaster(h.state.ctx.Problem, p.demand)
	g.expect(len(h.state.g.columns))
	for _, c := range h.state.g.columns {
		if l := c.Load.Within(p.demand); !l.Empty() {
			g.add(column{c.Offer, l})
		}
	}
	h.tighten(p, g)
	return g
}

// prove spends a slice on the bound.
func (h *dual) prove(slice int64) {
	for until := h.state.ctx.Effort.Left - slice; h.state.ctx.Effort.Left > until && !h.state.ctx.Effort.Done() && !h.state.closed(); {
		h.prepare()
		p := h.proof
		if p.level == len(proofLevels) {
			return
		}
		if !h.step(p) {
			p.level++
			p.g = nil
		}
	}
}

// step draws one bound and moves the worths. It reports whether they moved.
//
// The worths of a relaxation swing from one solution to the next, so every other time it looks between them and those that gave the best bound yet
// (Wentges), unless that had nothing to say. It does so where pods state device memory; others are priced so fast that it does not pay.
func (h *dual) step(p *proof) bool {
	l := proofLevels[p.level]
	values, tolls := p.g.Values, h.cutDuals(p, p.g)
	between := h.state.ctx.Problem.Stated && p.steady != nil && !p.swung
	if between {
		values, tolls = halfway(values, p.steady), halfway(tolls, p.steadyCutDuals)
	}
	prices, sum := h.charge(p, tolls)
	found := h.state.ctx.PriceAll(values, p.placed, l.care, func(t int) int64 { return Above(prices[t], l.part) })
	bound, c := h.state.ctx.farley(values, p.placed, found, prices)
	if bound += sum; bound > p.bound {
		p.bound, p.steady, p.steadyCutDuals = bound, slices.Clone(values), tolls
	}
	if bound > h.state.bound {
		h.state.bound, h.shown = bound, &branch{covers: append(p.demanding(), c)}
	}
	moved := h.learn(p.g, found)
	pivots := p.g.pivots
	if moved {
		h.state.ctx.reoptimise(p.g)
	}
	p.swung = between && p.g.pivots == pivots
	return between || moved
}

// learn takes loads and mixtures that were found as columns of a relaxation, and reports whether any was new. The loads are for plans as well.
func (h *dual) learn(g *Master, found []pricing.Priced) bool {
	fresh := h.state.ctx.AddColumns(g, found)
	h.state.ctx.AddColumns(h.state.g, found)
	for t := range found {
		if found[t].Mixture != nil && g.mix(t, found[t].Mixture) {
			fresh = true
		}
	}
	return fresh
}

// halfway is between two series of worths.
func halfway(a, b []int64) []int64 {
	out := slices.Clone(a)
	for i := range min(len(a), len(b)) {
		out[i] = a[i]/2 + b[i]/2
	}
	return out
}
