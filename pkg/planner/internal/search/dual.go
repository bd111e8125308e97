package search

import (
	"runtime"
	"sync"
)

// runBoth runs the dual search and the primal search plan in parallel, each with its share of the effort. It reports whether branches contributed to
// the proof.
//
// Neither search sees the other's results before both have ended, so that the result does not depend on which one is faster. If the best plan is proven
// optimal, the result of the primal search is not needed and is dropped. If the two run one after the other, because there is one core or because the
// proof is likely to end soon, the proof comes first for plans of few machines. For plans of many machines, the proof rarely ends the search.
func (h *primal) runBoth(proving int64, plan func()) (grown bool) {
	h.sendToDual()
	all, columns := h.state.ctx.Effort, len(h.state.g.columns)
	h.dual.ownCopies(h)
	h.state.ctx.Effort, h.dual.state.ctx.Effort = all.Fork(), all.Fork()
	prove := func() {
		grown = h.dual.improveBound(proving)
		if h.dual.state.closed() {
			h.state.ctx.Effort.Void.Store(true)
		}
	}
	switch {
	case runtime.GOMAXPROCS(0) == 1 && !h.state.few():
		plan()
		prove()
	case runtime.GOMAXPROCS(0) == 1, h.quick():
		if prove(); !h.state.ctx.Effort.Stopped() {
			plan()
		}
	default:
		var other sync.WaitGroup
		other.Go(plan)
		prove()
		other.Wait()
	}
	all.Join(h.state.ctx.Effort, h.dual.state.ctx.Effort)
	h.state.ctx.Effort, h.dual.state.ctx.Effort = all, all
	h.receiveFromDual()
	for _, c := range h.dual.state.g.columns[columns:] {
		h.state.g.add(c)
	}
	if h.dual.state.closed() {
		h.state.best = h.dual.state.best
	} else {
		h.state.best = better(h.state.ctx.Problem, h.state.best, h.dual.state.best)
	}
	return grown
}

// quick reports whether the proof is likely to end soon: in the first round, for very few machines whose bounds are fast to compute.
func (h *primal) quick() bool {
	return h.dual.branching == nil && !h.state.ctx.Problem.Stated && h.state.best.cost(h.state.ctx.Problem).Machines <= quickMachines
}

// quickMachines is the number of machines that counts as very few.
const quickMachines = 10

// sendToDual passes the best plan and the relaxation to the dual search.
func (h *primal) sendToDual() {
	h.dual.state.best, h.dual.state.g = h.state.best, h.state.g
}

// receiveFromDual takes over the bound and the cuts of the dual search.
func (h *primal) receiveFromDual() {
	h.state.bound, h.state.cuts = h.dual.state.bound, h.dual.state.cuts
}

// ownCopies gives the dual search its own copies of the data that it changes while the primal search runs.
func (h *dual) ownCopies(of *primal) {
	if h.state.ctx == of.state.ctx {
		h.state.ctx = NewContext(of.state.ctx.Problem, of.state.ctx.Effort)
		h.state.ctx.linear, h.state.ctx.linearStocks = of.state.ctx.linear, of.state.ctx.linearStocks
	}
	h.state.best, h.state.g = h.state.best.clone(), h.state.g.clone()
}

// improveBound spends a slice on each method to raise the bound, and reports whether branches contributed.
func (h *dual) improveBound(slice int64) bool {
	if h.state.few() {
		// The first branch is the set of all plans. Its bound is the one with which a proof begins.
		h.renew()
	} else {
		h.prove(slice)
	}
	return h.branchOut(slice)
}
