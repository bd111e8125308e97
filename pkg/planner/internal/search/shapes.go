package search

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits of the search for a plan of many shapes.
const (
	// smoothSlices is the factor by which the relaxation's part of the first round then grows. Above smoothRows rows, that part grows with the square of
	// their number.
	smoothSlices = 3
	smoothRows   = 150
	// smoothPercent is the percentage of the worths that comes from those of the best bound.
	smoothPercent = 85
	// smoothPart: a load is of interest if its worth exceeds the price of its machine by 1/smoothPart.
	smoothPart = 1000
	// launchEvery: every so many rounds of column generation make a plan.
	launchEvery = 2
	// maxRows is the maximum number of shapes for which there is a relaxation, whose cost grows with their square. minPodsPerRow is the number of pods per shape
	// below which there is none either: its solution then has hardly any whole machines.
	maxRows       = 400
	minPodsPerRow = 6
	// linearRounds is the number of rounds of ascent for the worths from prices of resources, and boundRounds that if no relaxation improves the bound: it is then
	// 0.4 % higher for 1,000 Deployments. startSweeps is how often all parts of the plan are improved before
	// column generation, which starts from their loads.
	linearRounds = 60
	boundRounds  = 200
	startSweeps  = 3
)

var smoothEffort = pricing.Effort{Steps: 200}

// startManyShapes starts the search for a plan of many shapes with worths from prices of resources, which also give a bound, and with the parts of the plan. It
// reports whether a relaxation is of use. Otherwise it spends the whole effort on the parts.
func (h *primal) startManyShapes() bool {
	ctx, p := h.state.ctx, h.state.ctx.Problem
	relaxes, rounds := len(p.Shapes) <= maxRows && p.Demand().Total() >= minPodsPerRow*int64(len(p.Shapes)), linearRounds
	if !relaxes {
		rounds = boundRounds
	}
	ctx.linear = ctx.linearValues(h.state.base.Left, rounds)
	ctx.linearStocks = ctx.linearDuals(ctx.linear, h.state.base.Left)
	ctx.duals = ctx.linearStocks
	h.sendToDual()
	h.dual.begin()
	h.receiveFromDual()
	switch values := ctx.ChoiceValues(ctx.linear); {
	case !h.state.best.Left.Empty():
		// A part has no room for pods that are not placed.
		if !relaxes {
			h.ruinAndRecreate(ctx.Effort.Left)
		}
	case relaxes:
		h.state.improveParts(values, startSweeps)
	default:
		h.state.improveParts(values, math.MaxInt)
	}
	return relaxes
}

// smoothColumns is column generation for many shapes. Its worths are between the duals and the worths of the best bound so far (Wentges smoothing), so
// that they swing less, and each pricing also gives a bound. It begins with the worths from prices of resources. Every other round makes a plan with
// its worths. The loads of its machines become columns: together they cover all pods, which loads of the greatest worth do not.
func (h *primal) smoothColumns(budget int64) {
	h.sendToDual()
	h.dual.renew()
	ctx, at := h.state.ctx, h.dual.proof.placed
	steady, best, swung := ctx.linear, int64(0), false
	for n, until := 1, ctx.Effort.Left-budget; ctx.Effort.Left > until && !ctx.Effort.Done(); n++ {
		values, between := h.state.g.Values, !swung
		if between {
			values = mixed(steady, values, smoothPercent)
		}
		k := h.dual.charge(h.dual.proof, h.state.g)
		found := ctx.PriceAll(values, at, smoothEffort, func(t int) int64 { return Above(k.prices[t], smoothPart) })
		nodes := ctx.priceNodeGroups(h.state.g, values, at, smoothEffort, smoothPart)
		bound, _, _ := ctx.farley(values, at, found, nodes, k)
		if bound > best {
			best, steady = bound, slices.Clone(values)
		}
		h.dual.state.bound = max(h.dual.state.bound, bound)
		fresh := ctx.AddColumns(h.state.g, found)
		if n%launchEvery == 0 {
			for _, x := range h.buyAgain(ctx.ChoiceValues(values)).Machines {
				fresh = h.state.g.add(column(x)) || fresh
			}
		}
		pivots := 0
		if addNodeColumns(h.state.g, nodes) || fresh {
			pivots = ctx.reoptimise(h.state.g)
		}
		if pivots == 0 && !between {
			break
		}
		swung = between && pivots == 0
	}
	h.receiveFromDual()
	if !ctx.Effort.Done() {
		h.buyAgain(h.state.values())
	}
}

// buyAgain makes a plan with the given worths, and returns it.
func (h *primal) buyAgain(values []int64) *Solution {
	ctx, s := h.state.ctx, h.state.base.clone()
	ctx.settle(s, values)
	ctx.Buy(s, values, ctx.Problem.Limits.Clone())
	ctx.downsize(s)
	h.state.best = better(ctx.Problem, h.state.best, s)
	return s
}

// mixed returns worths of which a percentage comes from the first list, and the rest from the second.
func mixed(a, b []int64, percent int64) []int64 {
	out := make([]int64, len(a))
	for k := range out {
		out[k] = a[k]/100*percent + b[k]/100*(100-percent)
	}
	return out
}
