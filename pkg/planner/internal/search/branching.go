package search

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on the branching.
const (
	maxBranches  = 2000
	branchRounds = 8    // bounds computed for each branch
	branchCost   = 100  // steps that a branch costs
	branchNear   = 1e-4 // tolerance for whole numbers
	branchDives  = 3    // the first branches, which are rounded to plans
	branchDive   = 8    // one in branchDive of the other branches is too
)

// branchEffort is the pricing effort for a branch. branchPart defines the minimum reduced cost that matters, as a fraction 1/branchPart of the price.
var branchEffort = pricing.Effort{Steps: 800, Parts: 60}

const branchPart = 2000

// branchOut splits branches until the best plan is proven or the slice is spent. It reports whether it did anything.
func (h *dual) branchOut(slice int64) bool {
	if h.state.ctx.Effort.Done() || h.state.closed() || !h.ended() || h.state.many() {
		return false
	}
	if h.branching == nil || !slices.Equal(h.branching.proof.placed, h.proof.placed) {
		h.branching = h.beginBranching()
	}
	t, before, counted := h.branching, h.branching.grown, false
	for until := h.state.ctx.Effort.Left - slice; !h.state.ctx.Effort.Done() && !h.state.closed(); {
		counted = h.count(t, until) || counted
		b := h.next(t, until)
		if b == nil {
			break
		}
		t.open = t.open[1:]
		t.grown++
		h.grow(t, b, until)
		if low := min(t.lowest(), h.state.best.cost(h.state.ctx.Problem).Price); low > h.state.bound {
			h.state.bound = low
		}
	}
	return counted || t.grown > before
}

// next returns the branch to grow. It returns nil if there is none or if the effort has fallen to until.
func (h *dual) next(t *branching, until int64) *branch {
	if h.state.ctx.Effort.Left <= until || h.state.ctx.Effort.Done() || h.state.closed() || len(t.open) == 0 || t.grown == maxBranches {
		return nil
	}
	if b := t.open[0]; b.bound < h.state.best.cost(h.state.ctx.Problem).Price {
		return b
	}
	return nil
}

func (h *dual) beginBranching() *branching {
	t := &branching{
		proof:  proof{demand: h.proof.demand, launched: h.proof.launched, placed: h.proof.placed, groups: h.proof.groups, cuts: slices.Clone(h.proof.cuts)},
		closed: math.MaxInt64,
	}
	t.whole = h.relaxed(&t.proof)
	offers := len(h.state.ctx.Problem.Offers)
	t.open = []*branch{{least: make([]int64, offers), most: slices.Repeat([]int64{-1}, offers), from: t.whole}}
	return t
}

// lowest returns the bound of all branches together.
func (t *branching) lowest() int64 {
	if len(t.open) == 0 {
		return t.closed
	}
	return min(t.closed, t.open[0].bound)
}

// grow bounds a branch, and splits it unless it has no plan that is better than the best.
func (h *dual) grow(t *branching, b *branch, until int64) {
	h.state.ctx.Effort.Spend(branchCost)
	g := b.from
	b.from = nil
	if b.row != nil {
		g = g.clone()
		g.require(*b.row)
		h.state.ctx.reoptimise(g)
		b.row = nil
	}
	if done, moves := h.settle(t, b, g, until); done {
		t.closed = min(t.closed, b.bound)
		return
	} else if moves {
		b.from = g
		t.opened(b)
		return
	}
	offer, few := h.fraction(g)
	if offer < 0 || t.grown <= branchDives || t.grown%branchDive == 0 {
		h.state.diveFrom(g, math.MaxInt64)
	}
	if offer < 0 {
		t.closed = min(t.closed, b.bound)
		return
	}
	serves := make([]bool, len(h.state.ctx.Problem.Offers))
	serves[offer] = true
	atMost, more := b.child(g, cardinality{serves, -1, few}), b.child(g, cardinality{serves, 1, few + 1})
	atMost.most[offer], more.least[offer] = few, few+1
	t.opened(atMost)
	t.opened(more)
}

// opened inserts a branch into the open branches, after those with the same bound.
func (t *branching) opened(b *branch) {
	at, _ := slices.BinarySearchFunc(t.open, b, func(x, y *branch) int { return cmp.Or(cmp.Compare(x.bound, y.bound), -1) })
	t.open = slices.Insert(t.open, at, b)
}

// child returns a branch that starts as a copy of b, and adds a row to its relaxation.
func (b *branch) child(g *Master, row cardinality) *branch {
	return &branch{bound: b.bound, least: slices.Clone(b.least), most: slices.Clone(b.most), from: g, row: &row}
}

// settle computes bounds of a branch. done reports whether the branch has no plan that is better than the best. If settle ends early, moves reports whether
// the worths still change.
func (h *dual) settle(t *branching, b *branch, g *Master, until int64) (done, moves bool) {
	p := &t.proof
	for range branchRounds {
		k := h.charge(p, g)
		asked, values := h.counting(p, g, k.prices), g.Values
		found := h.state.ctx.PriceAll(values, p.placed, branchEffort, func(t int) int64 { return Above(asked[t], branchPart) })
		nodes := h.state.ctx.priceNodeGroups(g, values, p.placed, branchEffort, branchPart)
		_, by, duals := h.state.ctx.farley(values, p.placed, found, nodes, k)
		h.draw(by, duals, p.placed)
		b.bound = max(b.bound, h.branchBound(b, &by, duals, k))
		if b.bound >= h.state.best.cost(h.state.ctx.Problem).Price {
			return true, false
		}
		if !h.learn(g, found, nodes) {
			return false, false
		}
		h.state.ctx.reoptimise(g)
		if h.state.ctx.Effort.Done() || h.state.ctx.Effort.Left <= until {
			return false, true
		}
	}
	return false, false
}

// branchBound returns a bound of a branch from a cover: with the duals of the stocks of the relaxation, or with those of the bound for all plans.
func (h *dual) branchBound(b *branch, by *cover, duals []int64, k charged) int64 {
	ctx := h.state.ctx
	bound := plus(k.sum, h.within(b, by, k.prices))
	if slices.Equal(duals, k.duals) {
		return bound
	}
	raised := slices.Clone(k.prices)
	for t := range raised {
		o := &ctx.Problem.Offers[t]
		raised[t] = amount.Saturating(raised[t]-drawn(o, k.duals), drawn(o, duals))
	}
	return max(bound, plus(k.sum+supply(ctx.Problem.Limits, k.duals)-supply(ctx.Problem.Limits, duals), h.within(b, by, raised)))
}

// plus returns the sum of what cuts and stocks contribute to a bound, which may be negative, and a price.
func plus(sum, price int64) int64 {
	if sum < 0 {
		if price == math.MaxInt64 {
			return price // There is no plan.
		}
		return price + sum
	}
	return amount.Saturating(sum, price)
}

// counting returns the price of each machine, adjusted by the duals of the rows of a branch.
func (h *dual) counting(p *proof, g *Master, prices []int64) []int64 {
	out := slices.Clone(prices)
	for i := len(p.cuts); i < len(g.cuts); i++ {
		y := int64(min(max(0, g.LP.Duals()[g.firstCut+i]), float64(planner.MaxPrice)))
		for t, serves := range g.cuts[i].serves {
			if serves {
				out[t] = max(1, out[t]-int64(g.cuts[i].sign)*y)
			}
		}
	}
	return out
}

// within returns the least price of fractional machines of a branch that satisfy a cover.
func (h *dual) within(b *branch, c *cover, prices []int64) int64 {
	need, price := c.need, int64(0)
	var order []int
	for t := range h.state.ctx.Problem.Offers {
		need -= amount.MulDiv(c.most[t], b.least[t], 1)
		price = amount.Saturating(price, amount.MulDiv(prices[t], b.least[t], 1))
		if c.most[t] > 0 && b.most[t] != b.least[t] {
			order = append(order, t)
		}
	}
	slices.SortStableFunc(order, func(s, t int) int { return amount.CompareProducts(prices[s], c.most[t], prices[t], c.most[s]) })
	for _, t := range order {
		if need <= 0 {
			return price
		}
		if n := b.most[t] - b.least[t]; b.most[t] >= 0 && need/n >= c.most[t] {
			need -= n * c.most[t]
			price = amount.Saturating(price, n*prices[t])
			continue
		}
		return amount.Saturating(price, amount.MulDivUp(need, prices[t], c.most[t]))
	}
	if need > 0 {
		return math.MaxInt64
	}
	return price
}

// fraction returns the offer with the most expensive fractional number of machines in a relaxation, and that number rounded down. The offer is -1 if all
// numbers are whole.
func (h *dual) fraction(g *Master) (offer int, few int64) {
	asked := h.state.ctx.Asked(g)
	offer, weight := -1, 0.0
	for t, n := range g.launched() {
		whole := math.Floor(n + branchNear)
		f := n - whole
		if f < branchNear {
			continue
		}
		if w := min(f, 1-f) * float64(asked(t)); w > weight {
			offer, few, weight = t, int64(whole), w
		}
	}
	return offer, few
}
