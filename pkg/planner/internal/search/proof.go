package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// proofLevels are the pricing efforts, with the fraction of the price (1/part) by which the worth of a load must exceed it to matter.
var proofLevels = []struct {
	limit pricing.Effort
	part  int64
}{{pricing.Effort{Steps: 200, Parts: 60}, 400}, {pricing.Effort{Steps: 600, Parts: 300}, 1000}, {pricing.Effort{Steps: 2500, Parts: 1000}, 3000}, {pricing.Effort{Steps: 15_000, Parts: 2500}, 8000}}

// prepare starts a proof, with its cuts, for the pods that the best plan places, unless there is one.
func (h *dual) prepare() {
	h.renew()
	p := h.proof
	if p.g != nil || p.level == len(proofLevels) {
		return
	}
	p.g = h.relaxed(p)
	h.state.cuts = slices.Clone(p.cuts)
}

// relaxed returns a relaxation for the pods that a proof launches for, with its cuts.
func (h *dual) relaxed(p *proof) *Master {
	g := &Master{known: map[string]bool{}}
	h.state.ctx.begin(g, p.demand, h.state.base)
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

// step computes one bound and updates the worths. It reports whether they changed.
func (h *dual) step(p *proof) bool {
	l := proofLevels[p.level]
	k := h.charge(p, p.g)
	found := h.state.ctx.PriceAll(p.g.Values, p.placed, l.limit, func(t int) int64 { return Above(k.prices[t], l.part) })
	nodes := h.state.ctx.priceNodeGroups(p.g, p.g.Values, p.placed, l.limit, l.part)
	bound, _, _ := h.state.ctx.farley(p.g.Values, p.placed, found, nodes, k)
	h.state.bound = max(h.state.bound, bound)
	if !h.learn(p.g, found, nodes) {
		return false
	}
	h.state.ctx.reoptimise(p.g)
	return true
}

// learn adds the loads and mixtures that were found as columns of a relaxation, and reports whether any was new. The loads are also added to the relaxation of
// the plan search.
func (h *dual) learn(g *Master, found, nodes []pricing.Priced) bool {
	fresh := h.state.ctx.AddColumns(g, found)
	h.state.ctx.AddColumns(h.state.g, found)
	fresh = addNodeColumns(g, nodes) || fresh
	addNodeColumns(h.state.g, nodes)
	for at := range nodes {
		if nodes[at].Mixture != nil && g.mix(-1-at, nodes[at].Mixture) {
			fresh = true
		}
	}
	for t := range found {
		if found[t].Mixture != nil && g.mix(t, found[t].Mixture) {
			fresh = true
		}
	}
	return fresh
}

// renew starts a proof unless there is one for the pods that the best plan places.
func (h *dual) renew() {
	if h.proof == nil || !slices.Equal(h.proof.placed, placed(h.state.ctx.Problem, h.state.best)) {
		h.begin()
	}
}

// begin starts a proof for the pods that the best plan places. It uses the covers of single shapes, of the worths of the search, and of each resource.
// It is fast and is never cut short, so that a search that is cut short also has a bound.
func (h *dual) begin() {
	all := h.launched(func(*nodeGroup) bool { return true })
	h.proof = &proof{launched: all, demand: h.launched(func(x *nodeGroup) bool { return !x.relaxed }), placed: placed(h.state.ctx.Problem, h.state.best)}
	h.state.bound, h.state.cuts = 0, nil
	for k, n := range h.proof.launched {
		if n == 0 {
			continue
		}
		if _, c, ok := coverShape(h.state.ctx.Problem, k, n); ok {
			h.state.bound = max(h.state.bound, c.Price)
		}
	}
	at := h.proof.placed
	k := h.charge(h.proof, nil)
	for _, values := range h.measures(at) {
		found := h.state.ctx.PriceAll(values, at, pricing.Rough, func(int) int64 { return 0 })
		nodes := h.state.ctx.priceNodeGroups(nil, values, at, nodeEffort, 0)
		bound, _, _ := h.state.ctx.farley(values, at, found, nodes, k)
		h.state.bound = max(h.state.bound, bound)
	}
}

// launched returns the minimum number of pods of each shape that are not on nodes of the given node groups, in any plan that places the same pods as the best one.
func (h *dual) launched(full func(*nodeGroup) bool) pack.Load {
	rest := placed(h.state.ctx.Problem, h.state.best)
	for at := range h.state.ctx.nodeGroups {
		x := &h.state.ctx.nodeGroups[at]
		if !full(x) {
			continue
		}
		for _, i := range x.nodes {
			for k := range rest {
				rest[k] = max(0, rest[k]-h.state.ctx.Problem.Nodes[i].Fits[k])
			}
		}
	}
	return rest
}
