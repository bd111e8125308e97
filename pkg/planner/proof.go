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
}

// proofLevels are how long a load is searched for, and what part of a price a load has to be worth above it to matter.
var proofLevels = []struct {
	steps int
	part  int64
}{{200, 400}, {1500, 1000}, {10_000, 3000}, {60_000, 8000}}

// prove spends a slice on the bound.
func (h *hunt) prove(slice int64) {
	p := h.proof
	at := placed(h.problem, h.best)
	if p == nil || !slices.Equal(p.placed, at) {
		p = &proof{demand: h.launched(), placed: at}
		h.proof, h.bound = p, 0
		h.bound = h.covers()
	}
	for until := h.effort.left - slice; h.effort.left > until && !h.effort.done() && p.level < len(proofLevels) && !h.closed(); {
		if p.g == nil {
			p.g = newMaster(h.problem, p.demand)
			for _, c := range h.g.columns {
				if l := c.load.within(p.demand); !l.empty() {
					p.g.add(column{c.offer, l})
				}
			}
			h.reoptimise(p.g)
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
	found := h.priceAll(p.g.values, p.demand, l.steps, func(t int) int64 { return above(h.offers[t].price, l.part) }, true)
	h.bound = max(h.bound, h.farley(p.g.values, p.placed, found))
	moved := h.take(p.g, found)
	h.take(h.g, found)
	for t := range found {
		if found[t].mixture != nil {
			p.g.mix(t, found[t].mixture)
			moved = true
		}
	}
	if moved {
		h.reoptimise(p.g)
	}
	return moved
}
