package search

import (
	"runtime"
	"slices"
	"sync"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// dual is the dual search, which computes lower bounds on the price. It also finds loads and plans.
type dual struct {
	state     state
	proof     *proof
	benders   benders
	shown     *branch    // what the bound is based on
	branching *branching // nil if there is none yet
}

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
		// The first branch is the set of all plans. It is bounded as in a proof.
		h.renew()
	} else {
		h.prove(slice)
	}
	return h.branchOut(slice)
}

// ended reports whether only branching is left to try.
func (h *dual) ended() bool {
	return h.state.few() || h.proof != nil && h.proof.level == len(proofLevels)
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
	all := h.launched(func(*host) bool { return true })
	h.proof = &proof{launched: all, demand: h.launched(func(x *host) bool { return !x.relaxed }), placed: placed(h.state.ctx.Problem, h.state.best)}
	h.state.bound, h.shown, h.state.cuts = 0, nil, nil
	for k, n := range h.proof.launched {
		if n == 0 {
			continue
		}
		if _, c, ok := coverShape(h.state.ctx.Problem, k, n); ok && c.Price > h.state.bound {
			h.state.bound, h.shown = c.Price, &branch{covers: coverAlone(h.state.ctx.Problem, k, h.state.best)}
		}
	}
	at := h.proof.placed
	k := h.charge(h.proof, nil)
	for _, values := range h.measures(at) {
		found := h.state.ctx.PriceAll(values, at, pricing.Rough, func(int) int64 { return 0 })
		nodes := h.state.ctx.priceHosts(nil, values, at, hostEffort, 0)
		if bound, by := h.state.ctx.farley(values, at, found, nodes, k); bound > h.state.bound {
			h.state.bound, h.shown = bound, &by
		}
	}
}

// launched returns the minimum number of pods of each shape that are not on nodes of the given hosts, in any plan that places the same pods as the best one.
func (h *dual) launched(full func(*host) bool) pack.Load {
	rest := placed(h.state.ctx.Problem, h.state.best)
	for at := range h.state.ctx.hosts {
		x := &h.state.ctx.hosts[at]
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
