package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// primal is the search for a plan of several shapes. It goes in rounds, each with more to spend than the one before: columns for the relaxation, a
// dive that rounds it, improvement, and at the same time a proof. What a round does depends only on what came before, so that a hunt that is cut short is
// the beginning of a longer one: more effort never gives a dearer plan.
type primal struct {
	state         state
	ready         bool // no more columns are to be found
	neighbourhood *neighbourhood
	dual          *dual
}

// state is what the search for plans and the proof have each of their own, as they go on at the same time. What the other half found they are told between rounds.
type state struct {
	ctx   *Context
	base  *Solution // nodes filled, nothing launched
	best  *Solution
	g     *Master
	bound int64
	cuts  []cardinality // what the proof demands of plans
	pool  *columnPool   // what dives met for later ones and for plans to be composed of, nil where that is not kept
}

// PriceAndBranch plans for several shapes. It returns the best plan found, and a price that no plan for the pods that it places can go below.
func PriceAndBranch(p *pack.Problem, e *effort.Budget, first func(*Solution)) (*Solution, int64, *branch) {
	h := runPrimal(p, e, first)
	bound := h.proven()
	return h.state.best, bound, h.dual.shown
}

// runPrimal looks for a plan for several shapes.
func runPrimal(p *pack.Problem, e *effort.Budget, first func(*Solution)) *primal {
	if len(p.Shapes) <= maxRows {
		e.ForShapes(len(p.Shapes))
	}
	m := NewContext(p, e)
	h := &primal{state: state{ctx: m, base: newSolution(p)}}
	h.dual = &dual{state: h.state}
	h.state.pool = &columnPool{known: map[string]bool{}}
	m.fill(h.state.base, m.alone)
	h.state.best = h.state.base.clone()
	m.Buy(h.state.best, m.alone, slices.Clone(p.Limits))
	m.downsize(h.state.best)
	if p.Limited {
		h.state.best = better(p, h.state.best, m.frugal(h.state.base))
	}
	if first != nil {
		first(h.state.best)
	}
	h.run()
	m.downsize(h.state.best)
	if h.state.best.cost(p) != (pack.Cost{}) {
		if again := m.replay(); again != nil {
			h.state.best = better(p, h.state.best, again)
		}
	}
	return h
}

// run makes rounds until the plan is proven best, the effort is spent, or two rounds, the second with twice as much to spend, have found nothing new and
// there is nothing left to try but the same again.
func (h *primal) run() {
	if h.state.base.Left.Empty() {
		// All pods are on nodes: there is nothing to launch.
		return
	}
	if len(h.state.ctx.Problem.Shapes) > maxRows {
		h.rough()
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

// round spends a slice on each part of a round, and reports whether branches had any part in its proof. In the first round of the fewest machines the plan
// has to be there before there is anything to prove; that of more is dived for beside the proof, which needs no good one yet.
func (h *primal) round(slice int64) (grown bool) {
	later := h.state.g != nil
	if !later {
		h.columns(slice, slice)
		if h.state.ctx.Problem.Stated && !h.state.few() {
			// Rounds of the proof are slow: the first plan is rounded with the cuts that there are before them.
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

// laterColumns is how much of a slice later rounds spend on columns. For plans of not too many machines it is a quarter: the proof finds most of the loads
// that are missing, others are slow to find, and their plans miss more by what is not whole.
func (h *primal) laterColumns(slice int64) int64 {
	if h.state.many() {
		return slice
	}
	return slice / 4
}

// refine spends so much on cheaper plans, at most: first on dives that turn off, which find most for their time. In the first round the relaxation knows
// too few loads to compose plans of many machines. Improvement rarely finds any, and the next round comes sooner.
func (h *primal) refine(improving int64, later bool) {
	h.limitedDiscrepancy(improving / 2)
	if later || h.state.fewest() {
		h.compose(improving / 2)
	}
	h.ruinAndRecreate(improving / 4)
}

// firstSlice is what the first round may spend on each of its parts, in steps. For plans of the fewest machines the second round finds most.
func (h *primal) firstSlice() int64 {
	if h.state.fewest() {
		return 40_000
	}
	return 60_000
}

// shares are what is spent on the proof and on the plan, so that both take about as long: beside what is spent on the plan there are columns and dives in
// later rounds. Where more is known to be missing of the plan, more is spent on it.
func (h *primal) shares(slice int64, later bool) (proving, improving int64) {
	z, price := int64(h.state.g.total()), h.state.best.cost(h.state.ctx.Problem).Price
	switch {
	case later && (h.state.fewest() || !h.state.few() && price-z > z-h.state.bound):
		return slice * 2, slice * 2
	case h.state.few(), !later:
		return slice * 2, slice
	}
	return slice * 3, slice / 2
}

// maxRows is the number of shapes beyond which there is no relaxation: its cost grows with their square.
const maxRows = 250

// rough improves plans of very many shapes by what pods cost among their like, and bounds them by that and by each resource.
func (h *primal) rough() {
	h.sendToDual()
	h.dual.begin()
	h.receiveFromDual()
	h.ruinAndRecreate(h.state.ctx.Effort.Left)
}

// roundCost is what a round costs at least, in steps.
const roundCost = 1000

// closed reports whether the plan is known to be the best.
func (h *state) closed() bool {
	return h.best.Left.Empty() && h.best.cost(h.ctx.Problem).Price <= h.bound
}

// values are what pods are worth to choose by.
func (h *state) values() []int64 {
	if h.g == nil {
		return h.ctx.alone
	}
	return h.ctx.ChoiceValues(h.g.Values)
}

// proven returns the bound for the pods that the best plan places.
func (h *primal) proven() int64 {
	if len(h.state.best.Machines) == 0 {
		return 0
	}
	h.sendToDual()
	h.dual.renew()
	return h.dual.state.bound
}

// coverAlone is the cover of one shape by itself.
func coverAlone(p *pack.Problem, k int, s *Solution) []cover {
	alone := cover{values: make([]int64, len(p.Shapes)), need: int64(placed(p, s)[k])}
	alone.values[k] = 1
	for t := range p.Offers {
		alone.most = append(alone.most, int64(p.Offers[t].Fits[k]))
	}
	for i := range p.Nodes {
		alone.nodes = append(alone.nodes, int64(p.Nodes[i].Fits[k]))
		alone.need -= int64(p.Nodes[i].Fits[k])
	}
	return []cover{alone}
}

// few reports whether the plan has so few machines that the proof is left to branches: one bound for all plans is of less use.
func (h *state) few() bool { return h.best.cost(h.ctx.Problem).Machines <= fewMachines }

// fewest reports whether the plan has half as many machines as few are.
func (h *state) fewest() bool { return h.best.cost(h.ctx.Problem).Machines <= fewMachines/2 }

// many reports whether the plan has more machines than branches of all of it are looked at for.
func (h *state) many() bool { return h.best.cost(h.ctx.Problem).Machines > branchMachines }
