package search

import (
	"runtime"
	"slices"
	"sync"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// dual is the half of a hunt that bounds the price from below. On the way it finds loads and plans as well.
type dual struct {
	state     state
	proof     *proof
	benders   benders
	shown     *branch    // what the bound rests on
	branching *branching // nil as long as there is none
}

// runBoth raises the bound and has a cheaper plan looked for, at the same time and each with its share of the effort. It reports whether branches had any part
// in the proof.
//
// Neither half knows of the other before both have ended, so that what they find does not depend on which is faster. A best plan that was proven to be one
// makes the other half needless, and whatever that has found is left aside. So where the halves go one after the other, for one core or since the proof is
// likely done before another core has begun, the proof of few machines comes first; that of many is hardly ever the end.
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

// quick reports whether the proof is likely done at once: in the first round, for hardly any machines whose bounds are drawn fast.
func (h *primal) quick() bool {
	return h.dual.branching == nil && !h.state.ctx.Problem.Stated && h.state.best.cost(h.state.ctx.Problem).Machines <= quickMachines
}

// quickMachines is how many machines are hardly any.
const quickMachines = 10

// sendToDual has the proof go on from what the search for plans has found.
func (h *primal) sendToDual() {
	h.dual.state.best, h.dual.state.g = h.state.best, h.state.g
}

// receiveFromDual takes over what the proof says.
func (h *primal) receiveFromDual() {
	h.state.bound, h.state.cuts = h.dual.state.bound, h.dual.state.cuts
}

// ownCopies gives the proof what it has to have of its own to go on beside the search for plans.
func (h *dual) ownCopies(of *primal) {
	if h.state.ctx == of.state.ctx {
		h.state.ctx = NewContext(of.state.ctx.Problem, of.state.ctx.Effort)
	}
	h.state.best, h.state.g = h.state.best.clone(), h.state.g.clone()
}

// improveBound spends a slice on the bound, or on each way to it, and reports whether branches had any part in it.
func (h *dual) improveBound(slice int64) bool {
	if h.state.few() {
		// The first branch is the whole, and bounded as in a proof.
		h.renew()
	} else {
		h.prove(slice)
	}
	return h.branchOut(slice)
}

// ended reports whether there is nothing more to try than what branches do.
func (h *dual) ended() bool {
	return h.state.few() || h.proof != nil && h.proof.level == len(proofLevels)
}

// renew begins a proof unless there is one for the pods that the best plan places.
func (h *dual) renew() {
	if h.proof == nil || !slices.Equal(h.proof.placed, placed(h.state.ctx.Problem, h.state.best)) {
		h.begin()
	}
}

// begin begins a proof for the pods that the best plan places: each shape alone has to be covered, whatever shares the machines with it, and what pods
// are worth to the search, or take of each resource. It is quick, and not cut short, so that a search that is has a bound too.
func (h *dual) begin() {
	h.proof = &proof{demand: h.launched(), placed: placed(h.state.ctx.Problem, h.state.best)}
	h.state.bound, h.shown, h.state.cuts = 0, nil, nil
	for k, n := range h.proof.demand {
		if n == 0 {
			continue
		}
		if _, c, ok := coverShape(h.state.ctx.Problem, k, n); ok && c.Price > h.state.bound {
			h.state.bound, h.shown = c.Price, &branch{covers: coverAlone(h.state.ctx.Problem, k, h.state.best)}
		}
	}
	at := h.proof.placed
	prices, _ := h.charge(h.proof, nil)
	for _, values := range h.measures(at) {
		found := h.state.ctx.PriceAll(values, at, pricing.Rough, func(int) int64 { return 0 })
		if bound, c := h.state.ctx.farley(values, at, found, prices); bound > h.state.bound {
			h.state.bound, h.shown = bound, &branch{covers: []cover{c}}
		}
	}
}

// launched is how many pods of each shape at least are launched for, in any plan that places what the best one places.
func (h *dual) launched() pack.Load {
	rest := placed(h.state.ctx.Problem, h.state.best)
	for k := range rest {
		for i := range h.state.ctx.Problem.Nodes {
			rest[k] = max(0, rest[k]-h.state.ctx.Problem.Nodes[i].Fits[k])
		}
	}
	return rest
}
