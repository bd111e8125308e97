package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// benders bounds plans by the cheapest whole numbers of machines that keep all covers there are. Where the pods have no place on these, not even in parts,
// a relaxation that has to do with them says what pods are worth then: one more cover, which these numbers do not keep (Benders).
type benders struct {
	placed pack.Load
	// resources are covers by what pods take of each resource, drawn those that relaxations gave, the last ones.
	resources, drawn []cover
	// reach is how far above the bound numbers are looked for, 0 where it is not known yet.
	reach int64
	// fresh is whether a cover was drawn since numbers were looked for last; ended, whether there is nothing more to find.
	fresh, ended bool
}

// Limits on the covers: how many of those drawn there are, how many bounds are drawn for one, how many steps a search for numbers has and what each
// counts, what part of a price is too little to reach for, and how many nodes and, beyond the fewest machines, shapes there may be.
const (
	bendersCovers = 48
	bendersRounds = 12
	bendersSteps  = 4000
	bendersCost   = 4
	bendersReach  = 1000
	bendersNodes  = 30
	bendersShapes = 12
)

// bendersExtra is how many times its price a machine beyond the numbers costs more, first and where that does not keep pods off such machines.
var bendersExtra = []float64{3, 24}

// resourceEffort is how offers are priced for covers by resource, of which mostly as much can be had as there is.
var resourceEffort = pricing.Effort{Steps: 60}

// draw adds a cover to those that numbers of machines have to keep.
func (h *dual) draw(c cover, at pack.Load) {
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
	b.drawn, b.fresh = append(b.drawn, c), true
}

// count raises the bound by numbers of machines, and goes on while the effort is not down to until. It reports whether the bound is higher.
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

// countable reports whether a search for numbers of machines is worth it: there is a cover that the last one did not have. It is for plans of few machines,
// where each cover drawn is used for all that it says. With many shapes, and more than the fewest machines, the searches do not come to an end.
func (h *dual) countable() bool {
	b := &h.benders
	return b.fresh && !b.ended && h.state.few() && (h.state.fewest() || len(h.state.ctx.Problem.Shapes) <= bendersShapes) && len(h.state.ctx.Problem.Nodes) <= bendersNodes
}

// byResource makes the covers by resource, unless there are some.
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

// numbers looks for the cheapest numbers of machines that keep all covers, as far as it reaches, and raises the bound. It returns the best that it found,
// nil where there are none, and whether the search came to its end.
func (h *dual) numbers() (numbers []int64, whole bool) {
	b, best := &h.benders, h.state.best.cost(h.state.ctx.Problem).Price
	if b.reach == 0 {
		b.reach = best - h.state.bound
	}
	l := newIntegerCover(h.state.ctx.Problem, slices.Concat(b.resources, b.drawn), min(best, h.state.bound+b.reach), bendersSteps)
	bound := l.search()
	h.state.ctx.Effort.Spend(int64(bendersSteps-l.steps) * bendersCost)
	if bound > h.state.bound {
		h.state.bound, h.shown = bound, &branch{covers: l.covers}
	}
	return l.found, l.steps > 0
}

// refute looks for a cover that numbers of machines do not keep, and reports whether there is one.
func (h *dual) refute(t *branching, numbers []int64, until int64) bool {
	p := &t.proof
	for i, extra := range bendersExtra {
		g := t.whole.clone()
		g.restrict(numbers, extra)
		h.state.ctx.reoptimise(g)
		for range bendersRounds {
			prices, _ := h.charge(p, h.cutDuals(p, g))
			asked := h.counting(p, g, prices)
			for t := range asked {
				asked[t] += int64(g.surcharge[t])
			}
			found := h.state.ctx.PriceAll(g.Values, p.placed, branchEffort, func(t int) int64 { return Above(asked[t], branchPart) })
			_, c := h.state.ctx.farley(g.Values, p.placed, found, asked)
			h.draw(c, p.placed)
			moved := h.learn(g, found)
			h.state.ctx.AddColumns(t.whole, found)
			if !c.kept(numbers) {
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

// kept reports whether so many machines keep a cover.
func (c *cover) kept(numbers []int64) bool {
	need := c.need
	for t, n := range numbers {
		need -= amount.MulDiv(c.most[t], n, 1)
	}
	return need <= 0
}

// restrict lets a relaxation have such numbers of machines, and takes so many times its price more for each beyond them.
func (m *Master) restrict(numbers []int64, extra float64) {
	m.surcharge = make([]float64, len(numbers))
	for t, n := range numbers {
		if n == 0 {
			m.surcharge[t] = float64(extra * float64(m.p.Offers[t].Price))
		}
	}
	for i := range m.Entries {
		if e := &m.Entries[i]; e.Offer >= 0 {
			e.Price += m.surcharge[e.Offer]
		}
	}
	for t, n := range numbers {
		if n > 0 {
			serves := make([]bool, len(numbers))
			serves[t] = true
			m.require(cardinality{serves, -1, n})
			row := int32(len(m.Demand) - 1)
			m.Entries = append(m.Entries, Entry{
				Price: float64(extra * float64(m.p.Offers[t].Price)), Column: -1, Offer: -1, Rows: []int32{row}, Counts: []float64{1},
			})
		}
	}
}
