package planner

import "slices"

// hunt is the search for a plan of several shapes. It goes in rounds, each with more to spend than the one before: columns for the relaxation, a
// dive that rounds it, improvement, and at the same time a proof. What a round does depends only on what came before, so that a hunt that is cut short is
// the beginning of a longer one: more effort never gives a dearer plan.
type hunt struct {
	side   half
	ready  bool // no more columns are to be found
	ruin   *ruiner
	prover *prover
}

// half is what the search for plans and the proof have each of their own, as they go on at the same time. What the other half found they are told between rounds.
type half struct {
	ctx   *mixer
	base  *solution // nodes filled, nothing launched
	best  *solution
	g     *master
	bound int64
	cuts  []tally // what the proof demands of plans
	met   *met    // what dives met for later ones and for plans to be composed of, nil where that is not kept
}

// priceAndBranch plans for several shapes. It returns the best plan found, and a price that no plan for the pods that it places can go below.
func priceAndBranch(p *problem, e *effort, first func(*solution)) (*solution, int64, *branch) {
	h := runPrimal(p, e, first)
	bound := h.proven()
	return h.side.best, bound, h.prover.shown
}

// runPrimal looks for a plan for several shapes.
func runPrimal(p *problem, e *effort, first func(*solution)) *hunt {
	if len(p.shapes) <= maxRows {
		e.share(len(p.shapes))
	}
	m := newMixer(p, e)
	h := &hunt{side: half{ctx: m, base: newSolution(p)}}
	h.prover = &prover{side: h.side}
	h.side.met = &met{known: map[string]bool{}}
	m.fill(h.side.base, m.alone)
	h.side.best = h.side.base.clone()
	m.buy(h.side.best, m.alone, slices.Clone(p.limits))
	m.downsize(h.side.best)
	if p.limited {
		h.side.best = better(p, h.side.best, m.frugal(h.side.base))
	}
	if first != nil {
		first(h.side.best)
	}
	h.run()
	m.downsize(h.side.best)
	if h.side.best.cost(p) != (cost{}) {
		if again := m.replay(); again != nil {
			h.side.best = better(p, h.side.best, again)
		}
	}
	return h
}

// run makes rounds until the plan is proven best, the effort is spent, or two rounds, the second with twice as much to spend, have found nothing new and
// there is nothing left to try but the same again.
func (h *hunt) run() {
	if h.side.base.left.empty() {
		// All pods are on nodes: there is nothing to launch.
		return
	}
	if len(h.side.ctx.problem.shapes) > maxRows {
		h.rough()
		return
	}
	for slice, idle := h.firstSlice(), 0; idle < 2 && h.side.ctx.effort.spend(roundCost) && !h.side.closed(); slice *= 2 {
		cost, bound := h.side.best.cost(h.side.ctx.problem), h.side.bound
		grown := h.round(slice)
		if h.side.ctx.effort.done() || h.side.closed() {
			return
		}
		if h.ready && h.prover.ended() && !grown && h.side.bound == bound && h.side.best.cost(h.side.ctx.problem) == cost {
			idle++
		} else {
			idle = 0
		}
	}
}

// round spends a slice on each part of a round, and reports whether branches had any part in its proof. In the first round of the fewest machines the plan
// has to be there before there is anything to prove; that of more is dived for beside the proof, which needs no good one yet.
func (h *hunt) round(slice int64) (grown bool) {
	later := h.side.g != nil
	if !later {
		h.columns(slice, slice)
		if h.side.ctx.problem.stated && !h.side.few() {
			// Rounds of the proof are slow: the first plan is rounded with the cuts that there are before them.
			h.tell()
			h.prover.prepare()
			h.hear()
		}
	}
	dived := !later && h.side.fewest()
	if dived {
		h.dive(slice)
	}
	proving, improving := h.shares(slice, later)
	if h.side.ctx.effort.done() || h.side.closed() {
		return false
	}
	return h.both(proving, func() {
		until := h.side.ctx.effort.left - proving
		if later {
			h.columns(slice, h.laterColumns(slice))
		}
		if !dived {
			h.dive(slice)
		}
		if !later || h.side.few() {
			// A round takes as long as its proof.
			improving = max(improving, h.side.ctx.effort.left-until)
		}
		h.refine(improving, later)
	})
}

// laterColumns is how much of a slice later rounds spend on columns. For plans of not too many machines it is a quarter: the proof finds most of the loads
// that are missing, others are slow to find, and their plans miss more by what is not whole.
func (h *hunt) laterColumns(slice int64) int64 {
	if h.side.many() {
		return slice
	}
	return slice / 4
}

// refine spends so much on cheaper plans, at most: first on dives that turn off, which find most for their time. In the first round the relaxation knows
// too few loads to compose plans of many machines. Improvement rarely finds any, and the next round comes sooner.
func (h *hunt) refine(improving int64, later bool) {
	h.turnOff(improving / 2)
	if later || h.side.fewest() {
		h.compose(improving / 2)
	}
	h.improve(improving / 4)
}

// firstSlice is what the first round may spend on each of its parts, in steps. For plans of the fewest machines the second round finds most.
func (h *hunt) firstSlice() int64 {
	if h.side.fewest() {
		return 40_000
	}
	return 60_000
}

// shares are what is spent on the proof and on the plan, so that both take about as long: beside what is spent on the plan there are columns and dives in
// later rounds. Where more is known to be missing of the plan, more is spent on it.
func (h *hunt) shares(slice int64, later bool) (proving, improving int64) {
	z, price := int64(h.side.g.total()), h.side.best.cost(h.side.ctx.problem).price
	switch {
	case later && (h.side.fewest() || !h.side.few() && price-z > z-h.side.bound):
		return slice * 2, slice * 2
	case h.side.few(), !later:
		return slice * 2, slice
	}
	return slice * 3, slice / 2
}

// maxRows is the number of shapes beyond which there is no relaxation: its cost grows with their square.
const maxRows = 250

// rough improves plans of very many shapes by what pods cost among their like, and bounds them by that and by each resource.
func (h *hunt) rough() {
	h.tell()
	h.prover.begin()
	h.hear()
	h.improve(h.side.ctx.effort.left)
}

// roundCost is what a round costs at least, in steps.
const roundCost = 1000

// closed reports whether the plan is known to be the best.
func (h *half) closed() bool {
	return h.best.left.empty() && h.best.cost(h.ctx.problem).price <= h.bound
}

// values are what pods are worth to choose by.
func (h *half) values() []int64 {
	if h.g == nil {
		return h.ctx.alone
	}
	return h.ctx.guide(h.g.values)
}

// proven returns the bound for the pods that the best plan places.
func (h *hunt) proven() int64 {
	if len(h.side.best.machines) == 0 {
		return 0
	}
	h.tell()
	h.prover.renew()
	return h.prover.side.bound
}

// coverAlone is the cover of one shape by itself.
func coverAlone(p *problem, k int, s *solution) []cover {
	alone := cover{values: make([]int64, len(p.shapes)), need: int64(placed(p, s)[k])}
	alone.values[k] = 1
	for t := range p.offers {
		alone.most = append(alone.most, int64(p.offers[t].fits[k]))
	}
	for i := range p.nodes {
		alone.nodes = append(alone.nodes, int64(p.nodes[i].fits[k]))
		alone.need -= int64(p.nodes[i].fits[k])
	}
	return []cover{alone}
}

// few reports whether the plan has so few machines that the proof is left to branches: one bound for all plans is of less use.
func (h *half) few() bool { return h.best.cost(h.ctx.problem).machines <= liftMachines }

// fewest reports whether the plan has half as many machines as few are.
func (h *half) fewest() bool { return h.best.cost(h.ctx.problem).machines <= liftMachines/2 }

// many reports whether the plan has more machines than branches of all of it are looked at for.
func (h *half) many() bool { return h.best.cost(h.ctx.problem).machines > branchMachines }
