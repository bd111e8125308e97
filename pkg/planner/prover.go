package planner

import (
	"runtime"
	"slices"
	"sync"
)

// prover is the half of a hunt that bounds the price from below. On the way it finds loads and plans as well.
type prover struct {
	side      half
	proof     *proof
	benders   benders
	shown     *branch    // what the bound rests on
	branching *branching // nil as long as there is none
	// lifted is the cost of the plan that lift was tried for last.
	lifted cost
}

// both raises the bound and has a cheaper plan looked for, at the same time and each with its share of the effort. It reports whether branches had any part
// in the proof.
//
// Neither half knows of the other before both have ended, so that what they find does not depend on which is faster. A best plan that was proven to be one
// makes the other half needless, and whatever that has found is left aside. So where the halves go one after the other, for one core or since the proof is
// likely done before another core has begun, the proof of few machines comes first; that of many is hardly ever the end.
func (h *hunt) both(proving int64, plan func()) (grown bool) {
	h.tell()
	all, columns := h.side.ctx.effort, len(h.side.g.columns)
	h.prover.apart(h)
	h.side.ctx.effort, h.prover.side.ctx.effort = all.apart(), all.apart()
	prove := func() {
		grown = h.prover.raise(proving)
		if h.prover.side.closed() {
			h.side.ctx.effort.void.Store(true)
		}
	}
	switch {
	case runtime.GOMAXPROCS(0) == 1 && !h.side.few():
		plan()
		prove()
	case runtime.GOMAXPROCS(0) == 1, h.quick():
		if prove(); !h.side.ctx.effort.stopped() {
			plan()
		}
	default:
		var other sync.WaitGroup
		other.Go(plan)
		prove()
		other.Wait()
	}
	all.join(h.side.ctx.effort, h.prover.side.ctx.effort)
	h.side.ctx.effort, h.prover.side.ctx.effort = all, all
	h.hear()
	for _, c := range h.prover.side.g.columns[columns:] {
		h.side.g.add(c)
	}
	if h.prover.side.closed() {
		h.side.best = h.prover.side.best
	} else {
		h.side.best = better(h.side.ctx.problem, h.side.best, h.prover.side.best)
	}
	return grown
}

// quick reports whether the proof is likely done at once: in the first round, for hardly any machines whose bounds are drawn fast.
func (h *hunt) quick() bool {
	return h.prover.branching == nil && !h.side.ctx.problem.stated && h.side.best.cost(h.side.ctx.problem).machines <= quickMachines
}

// quickMachines is how many machines are hardly any.
const quickMachines = 10

// tell has the proof go on from what the search for plans has found.
func (h *hunt) tell() {
	h.prover.side.best, h.prover.side.g, h.prover.side.ctx.dull, h.prover.side.ctx.known = h.side.best, h.side.g, h.side.ctx.dull, h.side.ctx.known
}

// hear takes over what the proof says.
func (h *hunt) hear() { h.side.bound, h.side.cuts = h.prover.side.bound, h.prover.side.cuts }

// apart gives the proof what it has to have of its own to go on beside the search for plans.
func (h *prover) apart(of *hunt) {
	if h.side.ctx == of.side.ctx {
		h.side.ctx = newMixer(of.side.ctx.problem, of.side.ctx.effort)
	}
	h.side.best, h.side.g = h.side.best.clone(), h.side.g.clone()
}

// raise spends a slice on the bound, or on each way to it, and reports whether branches had any part in it.
func (h *prover) raise(slice int64) bool {
	if h.side.few() {
		// The first branch is the whole, and bounded as in a proof.
		h.renew()
	} else {
		h.prove(slice)
		h.lift()
	}
	return h.branchOut(slice)
}

// ended reports whether there is nothing more to try than what branches do.
func (h *prover) ended() bool {
	return h.side.few() || h.proof != nil && h.proof.level == len(proofLevels)
}

// renew begins a proof unless there is one for the pods that the best plan places.
func (h *prover) renew() {
	if h.proof == nil || !slices.Equal(h.proof.placed, placed(h.side.ctx.problem, h.side.best)) {
		h.begin()
	}
}

// begin begins a proof for the pods that the best plan places: each shape alone has to be covered, whatever shares the machines with it, and what pods
// are worth to the search, or take of each resource. It is quick, and not cut short, so that a search that is has a bound too.
func (h *prover) begin() {
	h.proof = &proof{demand: h.launched(), placed: placed(h.side.ctx.problem, h.side.best)}
	h.side.bound, h.shown, h.side.cuts = 0, nil, nil
	for k, n := range h.proof.demand {
		if n == 0 {
			continue
		}
		if _, c, ok := coverShape(h.side.ctx.problem, k, n); ok && c.price > h.side.bound {
			h.side.bound, h.shown = c.price, &branch{covers: coverAlone(h.side.ctx.problem, k, h.side.best)}
		}
	}
	at := h.proof.placed
	prices, _ := h.charge(h.proof, nil)
	for _, values := range h.measures(at) {
		found := h.side.ctx.priceAll(values, at, rough, func(int) int64 { return 0 })
		if bound, c := h.side.ctx.farley(values, at, found, prices); bound > h.side.bound {
			h.side.bound, h.shown = bound, &branch{covers: []cover{c}}
		}
	}
}

// launched is how many pods of each shape at least are launched for, in any plan that places what the best one places.
func (h *prover) launched() load {
	rest := placed(h.side.ctx.problem, h.side.best)
	for k := range rest {
		for i := range h.side.ctx.problem.nodes {
			rest[k] = max(0, rest[k]-h.side.ctx.problem.nodes[i].fits[k])
		}
	}
	return rest
}
