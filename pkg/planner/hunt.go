package planner

import "slices"

// hunt is the search for a plan of several shapes. It goes in rounds, each with more to spend than the one before: columns for the relaxation, a
// dive that rounds it, a proof, improvement. What a round does depends only on what came before, so that a hunt that is cut short is the
// beginning of a longer one: more effort never gives a dearer plan.
type hunt struct {
	*mixer
	base  *solution // nodes filled, nothing launched
	best  *solution
	g     *master
	ready bool // no more columns are to be found
	proof *proof
	ruin  *ruiner
	bound int64
}

// firstSlice is what the first round may spend on each of its parts, in steps.
const firstSlice = 60_000

// mix plans for several shapes. It returns the best plan found, and a price that no plan for the pods that it places can go below.
func (p *problem) mix(e *effort, first func(*solution)) (*solution, int64) {
	m := newMixer(p, e)
	h := &hunt{mixer: m, base: newSolution(p)}
	m.fill(h.base, m.alone)
	h.best = h.base.clone()
	m.buy(h.best, m.alone, slices.Clone(p.limits))
	m.downsize(h.best)
	if p.limited {
		h.best = p.better(h.best, m.frugal(h.base))
	}
	if first != nil {
		first(h.best)
	}
	h.run()
	m.downsize(h.best)
	if h.best.cost(p) != (cost{}) {
		if again := m.replay(); again != nil {
			h.best = p.better(h.best, again)
		}
	}
	return h.best, h.proven()
}

// run makes rounds until the plan is proven best, the effort is spent, or a round has found nothing new and there is nothing left to try but
// the same again.
func (h *hunt) run() {
	if h.base.left.empty() {
		// All pods are on nodes: there is nothing to launch.
		return
	}
	for slice := int64(firstSlice); h.effort.spend(roundCost) && !h.closed(); slice *= 2 {
		cost, bound := h.best.cost(h.problem), h.bound
		h.columns(slice)
		h.dive(slice)
		h.prove(slice)
		if h.effort.done() || h.closed() {
			return
		}
		h.improve(slice)
		if h.ready && h.proof.level == len(proofLevels) && h.bound == bound && h.best.cost(h.problem) == cost {
			return
		}
	}
}

// roundCost is what a round costs at least, in steps.
const roundCost = 1000

// closed reports whether the plan is known to be the best.
func (h *hunt) closed() bool {
	return h.best.left.empty() && h.best.cost(h.problem).price <= h.bound
}

// values are what pods are worth to choose by.
func (h *hunt) values() []int64 {
	if h.g == nil {
		return h.alone
	}
	return h.guide(h.g.values)
}

// proven returns the bound for the pods that the best plan places.
func (h *hunt) proven() int64 {
	if len(h.best.machines) == 0 {
		return 0
	}
	return max(h.bound, h.covers())
}

// covers is the least price of machines for each shape alone: each has to be covered, whatever shares the machines with it.
func (h *hunt) covers() int64 {
	var bound int64
	rest := h.launched()
	for k, n := range rest {
		if n > 0 {
			if _, c, ok := h.cover(k, n); ok {
				bound = max(bound, c.price)
			}
		}
	}
	return bound
}

// launched is how many pods of each shape at least are launched for, in any plan that places what the best one places.
func (h *hunt) launched() load {
	rest := placed(h.problem, h.best)
	for k := range rest {
		for i := range h.nodes {
			rest[k] = max(0, rest[k]-h.nodes[i].fits[k])
		}
	}
	return rest
}
