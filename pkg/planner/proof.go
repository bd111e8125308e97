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
}

// proofLevels are how long a load is searched for, and what part of a price a load has to be worth above it to matter.
var proofLevels = []struct {
	steps int
	part  int64
	care  care
}{{200, 400, parting}, {600, 1000, cutting}, {2500, 3000, cutting}, {15_000, 8000, cutting}}

// prove spends a slice on the bound.
func (h *hunt) prove(slice int64) {
	if h.proof == nil || !slices.Equal(h.proof.placed, placed(h.problem, h.best)) {
		h.begin()
	}
	p := h.proof
	for until := h.effort.left - slice; h.effort.left > until && !h.effort.done() && p.level < len(proofLevels) && !h.closed(); {
		if p.g == nil {
			p.g = newMaster(h.problem, p.demand)
			for _, c := range h.g.columns {
				if l := c.load.within(p.demand); !l.empty() {
					p.g.add(column{c.offer, l})
				}
			}
			h.tighten(p)
		}
		if !h.step(p) {
			p.level++
			p.g = nil
		}
	}
}

// step draws one bound and moves the worths. It reports whether they moved.
func (h *hunt) step(p *proof) bool {
	l := proofLevels[p.level]
	prices, sum := h.charge(p)
	found := h.priceAll(p.g.values, p.placed, l.steps, func(t int) int64 { return above(prices[t], l.part) }, l.care)
	if bound, c := h.farley(p.g.values, p.placed, found, prices); sum+bound > h.bound {
		h.bound, h.shown = sum+bound, append(p.demanding(), c)
	}
	moved := h.take(p.g, found)
	h.take(h.g, found)
	for t := range found {
		if found[t].mixture != nil && p.g.mix(t, found[t].mixture) {
			moved = true
		}
	}
	if moved {
		h.reoptimise(p.g)
	}
	return moved
}
