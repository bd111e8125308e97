package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on the covers.
const (
	bendersCovers = 48   // drawn covers that are kept
	bendersRounds = 12   // bounds computed for a drawn cover
	bendersSteps  = 4000 // steps of a search for numbers
	bendersCost   = 4    // cost of each of these steps
	bendersReach  = 1000 // 1/bendersReach of the bound is too small a reach to search
	bendersNodes  = 30   // nodes of the problem
	bendersShapes = 12   // shapes of the problem, for plans with more than the fewest machines
)

// bendersExtra are the factors by which a machine beyond the numbers costs more. The second one is used if the first does not keep pods off such machines.
var bendersExtra = []float64{3, 24}

// resourceEffort is the pricing effort for covers by resource. The most of a resource that a machine can hold is usually its whole capacity.
var resourceEffort = pricing.Effort{Steps: 60}

// draw adds a cover that numbers of machines have to satisfy.
func (h *dual) draw(c cover, duals []int64, at pack.Load) {
	b := &h.benders
	if !slices.Equal(b.placed, at) {
		*b = benders{placed: slices.Clone(at)}
	}
	if c.need <= 0 {
		return
	}
	if len(b.drawn) == bendersCovers {
		b.drawn = slices.Delete(b.drawn, 0, 1)
	}
	b.drawn, b.duals, b.fresh = append(b.drawn, c), duals, true
}

// count raises the bound with numbers of machines, until the effort falls to until. It reports whether the bound is higher.
func (h *dual) count(t *branching, until int64) bool {
	b, before := &h.benders, h.state.bound
	if !h.countable() {
		return false
	}
	h.byResource(b)
	for b.fresh && !b.ended {
		low := h.state.bound
		numbers, whole := h.numbers()
		if !whole {
			b.reach /= 2
			b.ended = b.reach <= h.state.bound/bendersReach
		}
		if h.state.closed() || h.state.ctx.Effort.Left <= until || h.state.ctx.Effort.Done() {
			break
		}
		if numbers == nil {
			b.ended = b.ended || whole && h.state.bound == low
			continue
		}
		b.fresh = false
		if !h.refute(t, numbers, until) && whole && h.state.ctx.Effort.Left > until {
			b.ended = true
		}
	}
	return h.state.bound > before
}

// countable reports whether a search for numbers of machines is worthwhile: there is a new cover since the last search. It is for plans of few
// machines, in which each cover is effective. With many shapes and more than the fewest machines, the searches do not finish.
func (h *dual) countable() bool {
	b := &h.benders
	return b.fresh && !b.ended && h.state.few() && (h.state.fewest() || len(h.state.ctx.Problem.Shapes) <= bendersShapes) && len(h.state.ctx.Problem.Nodes) <= bendersNodes
}

// byResource makes the covers by resource, unless they exist.
func (h *dual) byResource(b *benders) {
	if b.resources != nil {
		return
	}
	for _, v := range h.measures(b.placed)[1:] {
		if c := h.cover(v, b.placed, resourceEffort); c.need > 0 {
			b.resources = append(b.resources, c)
		}
	}
}

// numbers searches for the cheapest numbers of machines that satisfy all covers, within reach, and raises the bound. It returns the best numbers found,
// or nil, and whether the search was complete.
func (h *dual) numbers() (numbers []int64, whole bool) {
	b, best := &h.benders, h.state.best.cost(h.state.ctx.Problem).Price
	if b.reach == 0 {
		b.reach = best - h.state.bound
	}
	l := newIntegerCover(h.state.ctx.Problem, slices.Concat(b.resources, b.drawn), b.duals, min(best, h.state.bound+b.reach), bendersSteps)
	h.state.bound = max(h.state.bound, l.search())
	h.state.ctx.Effort.Spend(int64(bendersSteps-l.steps) * bendersCost)
	return l.found, l.steps > 0
}

// refute searches for a cover that the numbers of machines violate, and reports whether it found one.
func (h *dual) refute(t *branching, numbers []int64, until int64) bool {
	p := &t.proof
	for i, extra := range bendersExtra {
		g := t.whole.clone()
		g.restrict(numbers, extra)
		h.state.ctx.reoptimise(g)
		for range bendersRounds {
			k := h.charge(p, g)
			asked := h.counting(p, g, k.prices)
			for t := range asked {
				asked[t] += int64(g.surcharge[t])
			}
			found := h.state.ctx.PriceAll(g.Values, p.placed, branchEffort, func(t int) int64 { return Above(asked[t], branchPart) })
			nodes := h.state.ctx.priceNodeGroups(g, g.Values, p.placed, branchEffort, branchPart)
			_, by, _ := h.state.ctx.farley(g.Values, p.placed, found, nodes, charged{prices: asked, duals: k.duals, sum: k.sum})
			h.draw(by, k.duals, p.placed)
			moved := h.learn(g, found, nodes)
			h.state.ctx.AddColumns(t.whole, found)
			addNodeColumns(t.whole, nodes)
			if !by.kept(numbers) {
				return true
			}
			if !moved {
				break
			}
			if h.state.ctx.Effort.Left <= until || h.state.ctx.Effort.Done() {
				return false
			}
			h.state.ctx.reoptimise(g)
		}
		if i == 0 {
			h.state.diveFrom(g, h.state.ctx.Effort.Left-until)
		}
	}
	return false
}

// kept reports whether the numbers of machines satisfy a cover.
func (c *cover) kept(numbers []int64) bool {
	need := c.need
	for t, n := range numbers {
		need -= amount.MulDiv(c.most[t], n, 1)
	}
	return need <= 0
}
