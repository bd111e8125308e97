package planner

import "slices"

// proof drives the bound up. A search for the most valuable load that ends too soon leaves a mixture that might be worth more than the price of its
// machine; the relaxation of the proof takes such mixtures for columns, so that its worths move to where the searches can tell that no load is
// worth more than its machine.
type proof struct {
	g      *master
	demand load // what is launched for
	placed load // what is placed
	level  int
	groups []group
	cuts   []cut

	// steady are the worths and the tolls of the best bound of this proof, and swung is whether to leave them aside once.
	bound       int64
	steady      []int64
	steadyTolls []int64
	swung       bool
}

// proofLevels are how offers are priced, and what part of a price a load has to be worth above it to matter.
var proofLevels = []struct {
	care care
	part int64
}{{care{200, 60}, 400}, {care{600, 300}, 1000}, {care{2500, 1000}, 3000}, {care{15_000, 2500}, 8000}}

// prepare begins a proof for what the best plan places, with its cuts, unless there is one.
func (h *prover) prepare() {
	h.renew()
	p := h.proof
	if p.g != nil || p.level == len(proofLevels) {
		return
	}
	p.g = h.relaxed(p)
	h.side.cuts = p.tallies()
}

// relaxed is a relaxation for what a proof launches for, with its cuts.
func (h *prover) relaxed(p *proof) *master {
	g := newMaster(h.side.ctx.problem, p.demand)
	g.expect(len(h.side.g.columns))
	for _, c := range h.side.g.columns {
		if l := c.load.within(p.demand); !l.empty() {
			g.add(column{c.offer, l})
		}
	}
	h.tighten(p, g)
	return g
}

// prove spends a slice on the bound.
func (h *prover) prove(slice int64) {
	for until := h.side.ctx.effort.left - slice; h.side.ctx.effort.left > until && !h.side.ctx.effort.done() && !h.side.closed(); {
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
func (h *prover) step(p *proof) bool {
	l := proofLevels[p.level]
	values, tolls := p.g.values, h.tolls(p, p.g)
	between := h.side.ctx.problem.stated && p.steady != nil && !p.swung
	if between {
		values, tolls = halfway(values, p.steady), halfway(tolls, p.steadyTolls)
	}
	prices, sum := h.charge(p, tolls)
	found := h.side.ctx.priceAll(values, p.placed, l.care, func(t int) int64 { return above(prices[t], l.part) })
	bound, c := h.side.ctx.farley(values, p.placed, found, prices)
	if bound += sum; bound > p.bound {
		p.bound, p.steady, p.steadyTolls = bound, slices.Clone(values), tolls
	}
	if bound > h.side.bound {
		h.side.bound, h.shown = bound, &branch{covers: append(p.demanding(), c)}
	}
	moved := h.learn(p.g, found)
	pivots := p.g.pivots
	if moved {
		h.side.ctx.reoptimise(p.g)
	}
	p.swung = between && p.g.pivots == pivots
	return between || moved
}

// learn takes loads and mixtures that were found as columns of a relaxation, and reports whether any was new. The loads are for plans as well.
func (h *prover) learn(g *master, found []priced) bool {
	fresh := h.side.ctx.take(g, found)
	h.side.ctx.take(h.side.g, found)
	for t := range found {
		if found[t].mixture != nil && g.mix(t, found[t].mixture) {
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
