package search

import (
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// PriceAndBranch plans for several shapes. It returns the best plan found, and a lower bound on the price of any plan for the pods that it places.
func PriceAndBranch(p *pack.Problem, e *effort.Budget, first func(*Solution)) (best *Solution, bound int64) {
	h := runPrimal(p, e, first)
	return h.state.best, h.proven()
}

// runPrimal searches for a plan for several shapes.
func runPrimal(p *pack.Problem, e *effort.Budget, first func(*Solution)) *primal {
	e.ForShapes(len(p.Shapes))
	m := NewContext(p, e)
	h := &primal{state: state{ctx: m, base: m.base()}}
	h.dual = &dual{state: h.state}
	h.state.pool = &columnPool{known: map[string]bool{}}
	filled := h.state.base.clone()
	m.fill(filled, m.alone)
	h.state.best = filled.clone()
	m.Buy(h.state.best, m.alone, p.Limits.Clone())
	m.downsize(h.state.best)
	if p.Limited {
		h.state.best = better(p, h.state.best, m.frugal(filled))
	}
	if first != nil {
		first(h.state.best)
	}
	h.run()
	m.downsize(h.state.best)
	return h
}

// run makes rounds until the plan is proven optimal, or the effort is spent. It also ends after two rounds that found nothing new, the second with twice the
// budget of the first, if there is nothing else left to try.
func (h *primal) run() {
	if h.state.best.Left.Empty() && len(h.state.best.Machines) == 0 {
		// All pods are on nodes: there is nothing to launch.
		return
	}
	if h.state.hasManyShapes() && !h.startManyShapes() {
		return
	}
	for slice, idle := h.firstSlice(), 0; idle < 2 && h.state.ctx.Effort.Spend(roundCost) && !h.state.closed(); slice *= 2 {
		cost, bound := h.state.best.cost(h.state.ctx.Problem), h.state.bound
		grown := h.round(slice)
		if h.state.ctx.Effort.Done() || h.state.closed() {
			return
		}
		if h.ready && h.dual.ended() && !grown && h.state.bound == bound && h.state.best.cost(h.state.ctx.Problem) == cost {
			idle++
		} else {
			idle = 0
		}
	}
}

// round spends a slice on each part of a round, and reports whether branches contributed to its proof. In the first round for the fewest machines, the plan
// must exist before there is anything to prove. For more machines, the search dives in parallel with the proof, which does not need a good plan yet.
func (h *primal) round(slice int64) (grown bool) {
	later := h.state.g != nil
	if !later {
		h.columns(slice, slice)
		if h.state.ctx.Problem.Stated && !h.state.few() {
			// Rounds of the proof are slow. The first plan is rounded with the cuts that exist before them.
			h.sendToDual()
			h.dual.prepare()
			h.receiveFromDual()
		}
	}
	dived := !later && h.state.fewest()
	if dived {
		h.dive(slice)
	}
	proving, improving := h.shares(slice, later)
	if h.state.ctx.Effort.Done() || h.state.closed() {
		return false
	}
	return h.runBoth(proving, func() {
		until := h.state.ctx.Effort.Left - proving
		if later {
			h.columns(slice, h.laterColumns(slice))
		}
		if !dived {
			h.dive(slice)
		}
		if !later || h.state.few() {
			// A round takes as long as its proof.
			improving = max(improving, h.state.ctx.Effort.Left-until)
		}
		h.refine(improving, later)
	})
}

// laterColumns returns how much of a slice later rounds spend on columns. Except for plans of many machines it is a quarter: the proof finds most of
// the missing loads, others take long to find, and the gap of such plans is mostly due to integrality.
func (h *primal) laterColumns(slice int64) int64 {
	if h.state.many() {
		return slice
	}
	return slice / 4
}

// refine spends at most improving on cheaper plans. In the first round, the relaxation has too few loads to compose plans of many machines. Ruin and recreate
// rarely finds any, and the next round then starts sooner.
func (h *primal) refine(improving int64, later bool) {
	if later || h.state.fewest() {
		h.restrictedMaster(improving / 2)
	}
	h.ruinAndRecreate(improving / 4)
}

// firstSlice returns what the first round may spend on each of its parts, in steps. For plans of the fewest machines, the second round finds most.
func (h *primal) firstSlice() int64 {
	if h.state.fewest() {
		return 40_000
	}
	return 60_000
}

// shares returns the budgets for the proof and for the plan, so that both take about as long. Later rounds also spend time on columns and dives for the plan.
// If more of the gap is known to be due to the plan, it gets more.
func (h *primal) shares(slice int64, later bool) (proving, improving int64) {
	z, price := int64(h.state.g.LP.Cost()), h.state.best.cost(h.state.ctx.Problem).Price
	switch {
	case later && (h.state.fewest() || !h.state.few() && price-z > z-h.state.bound):
		return slice * 2, slice * 2
	case h.state.few(), !later:
		return slice * 2, slice
	}
	return slice * 3, slice / 2
}

// roundCost is the minimum cost of a round, in steps.
const roundCost = 1000

// proven returns the bound for the pods that the best plan places.
func (h *primal) proven() int64 {
	if len(h.state.best.Machines) == 0 {
		return 0
	}
	h.sendToDual()
	h.dual.renew()
	return h.dual.state.bound
}
