package planner

import (
	"runtime"
	"slices"
	"sync"
)

// prover is the half of a hunt that bounds the price from below. On the way it finds loads and plans as well.
type prover struct {
	half
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
	all, columns := h.effort, len(h.g.columns)
	h.prover.apart(h)
	h.effort, h.prover.effort = all.apart(), all.apart()
	prove := func() {
		grown = h.prover.raise(proving)
		if h.prover.closed() {
			h.effort.void.Store(true)
		}
	}
	switch {
	case runtime.GOMAXPROCS(0) == 1 && !h.few():
		plan()
		prove()
	case runtime.GOMAXPROCS(0) == 1, h.quick():
		if prove(); !h.effort.stopped() {
			plan()
		}
	default:
		var other sync.WaitGroup
		other.Go(plan)
		prove()
		other.Wait()
	}
	all.join(h.effort, h.prover.effort)
	h.effort, h.prover.effort = all, all
	h.hear()
	for _, c := range h.prover.g.columns[columns:] {
		h.g.add(c)
	}
	if h.prover.closed() {
		h.best = h.prover.best
	} else {
		h.best = h.better(h.best, h.prover.best)
	}
	return grown
}

// quick reports whether the proof is likely done at once: in the first round, for hardly any machines whose bounds are drawn fast.
func (h *hunt) quick() bool {
	return h.prover.branching == nil && !h.stated && h.best.cost(h.problem).machines <= quickMachines
}

// quickMachines is how many machines are hardly any.
const quickMachines = 10

// tell has the proof go on from what the search for plans has found.
func (h *hunt) tell() {
	h.prover.best, h.prover.g, h.prover.dull, h.prover.known = h.best, h.g, h.dull, h.known
}

// hear takes over what the proof says.
func (h *hunt) hear() { h.bound, h.cuts = h.prover.bound, h.prover.cuts }

// apart gives the proof what it has to have of its own to go on beside the search for plans.
func (h *prover) apart(of *hunt) {
	if h.mixer == of.mixer {
		h.mixer = newMixer(of.problem, of.effort)
	}
	h.best, h.g = h.best.clone(), h.g.clone()
}

// raise spends a slice on the bound, or on each way to it, and reports whether branches had any part in it.
func (h *prover) raise(slice int64) bool {
	if h.few() {
		// The first branch is the whole, and bounded as in a proof.
		h.renew()
	} else {
		h.prove(slice)
		h.lift()
	}
	return h.branchOut(slice)
}

// ended reports whether there is nothing more to try than what branches do.
func (h *prover) ended() bool { return h.few() || h.proof != nil && h.proof.level == len(proofLevels) }

// renew begins a proof unless there is one for the pods that the best plan places.
func (h *prover) renew() {
	if h.proof == nil || !slices.Equal(h.proof.placed, placed(h.problem, h.best)) {
		h.begin()
	}
}

// begin begins a proof for the pods that the best plan places: each shape alone has to be covered, whatever shares the machines with it, and what pods
// are worth to the search, or take of each resource. It is quick, and not cut short, so that a search that is has a bound too.
func (h *prover) begin() {
	h.proof = &proof{demand: h.launched(), placed: placed(h.problem, h.best)}
	h.bound, h.shown, h.cuts = 0, nil, nil
	for k, n := range h.proof.demand {
		if n == 0 {
			continue
		}
		if _, c, ok := h.problem.cover(k, n); ok && c.price > h.bound {
			h.bound, h.shown = c.price, &branch{covers: h.coverAlone(k, h.best)}
		}
	}
	at := h.proof.placed
	prices, _ := h.charge(h.proof, nil)
	for _, values := range h.measures(at) {
		found := h.priceAll(values, at, rough, func(int) int64 { return 0 })
		if bound, c := h.farley(values, at, found, prices); bound > h.bound {
			h.bound, h.shown = bound, &branch{covers: []cover{c}}
		}
	}
}

// launched is how many pods of each shape at least are launched for, in any plan that places what the best one places.
func (h *prover) launched() load {
	rest := placed(h.problem, h.best)
	for k := range rest {
		for i := range h.nodes {
			rest[k] = max(0, rest[k]-h.nodes[i].fits[k])
		}
	}
	return rest
}
