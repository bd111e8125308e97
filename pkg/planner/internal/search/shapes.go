package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits of the search for a plan of many shapes.
const (
	// manyShapes is the number of shapes above which most of a short search goes to the relaxation.
	manyShapes = 60
	// smoothSlices is the factor by which the relaxation's part of the first round then grows. Above smoothRows rows, that part grows with the square of
	// their number.
	smoothSlices = 3
	smoothRows   = 150
	// smoothPercent is the percentage of the worths that comes from those of the best bound.
	smoothPercent = 85
	// smoothPart: a load is of interest if its worth exceeds the price of its machine by 1/smoothPart.
	smoothPart = 1000
)

// smoothEffort is the effort of one pricing.
var smoothEffort = pricing.Effort{Steps: 200}

// hasManyShapes reports whether the problem has many shapes.
func (h *state) hasManyShapes() bool { return len(h.ctx.Problem.Shapes) > manyShapes }

// smoothColumns is column generation for many shapes. Its worths are between the duals and the worths of the best bound so far (Wentges smoothing), so
// that they swing less, and each pricing also gives a bound. After a quarter of the budget and at the end, it makes a plan with these worths. A search
// that is cut short soon then has both.
func (h *primal) smoothColumns(budget int64) {
	h.sendToDual()
	h.dual.renew()
	ctx, at := h.state.ctx, h.dual.proof.placed
	prices, _ := h.dual.chargeCuts(h.dual.proof, nil)
	var steady []int64
	best, swung, early := int64(0), false, true
	for until := ctx.Effort.Left - budget; ctx.Effort.Left > until && !ctx.Effort.Done(); {
		if early && ctx.Effort.Left < until+budget*3/4 {
			h.buyAgain()
			early = false
		}
		values, between := h.state.g.Values, steady != nil && !swung
		if between {
			values = mixed(steady, values, smoothPercent)
		}
		found := ctx.PriceAll(values, at, smoothEffort, func(t int) int64 { return Above(prices[t], smoothPart) })
		nodes := ctx.priceHosts(h.state.g, values, at, smoothEffort, smoothPart)
		bound, c := ctx.farley(values, at, found, nodes, prices)
		if bound > best || steady == nil {
			best, steady = bound, slices.Clone(values)
		}
		if bound > h.dual.state.bound {
			h.dual.state.bound, h.dual.shown = bound, &branch{covers: []cover{c}}
		}
		fresh := ctx.AddColumns(h.state.g, found)
		pivots := 0
		if addHostColumns(h.state.g, nodes) || fresh {
			pivots = ctx.reoptimise(h.state.g)
		}
		if pivots == 0 && !between {
			break
		}
		swung = between && pivots == 0
	}
	h.receiveFromDual()
	if early || !ctx.Effort.Done() {
		h.buyAgain()
	}
}

// buyAgain makes a plan with the worths of the relaxation.
func (h *primal) buyAgain() {
	ctx, s, values := h.state.ctx, h.state.base.clone(), h.state.values()
	ctx.settle(s, values)
	ctx.Buy(s, values, slices.Clone(ctx.Problem.Limits))
	ctx.downsize(s)
	h.state.best = better(ctx.Problem, h.state.best, s)
}

// mixed returns worths of which a percentage comes from the first list, and the rest from the second.
func mixed(a, b []int64, percent int64) []int64 {
	out := make([]int64, len(a))
	for k := range out {
		out[k] = a[k]/100*percent + b[k]/100*(100-percent)
	}
	return out
}
