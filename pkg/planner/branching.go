package planner

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// branching is a branch and bound over the numbers of machines of each offer: a relaxation launches fractions of machines, and where plans have few of
// them that is most of what it misses. The branch with the lowest bound is split first, by the offer whose fraction weighs most.
type branching struct {
	proof proof
	root  *branch
	// whole is the relaxation of the root.
	whole *master
	// open are the branches that may be split, the lowest bound first; closed is the lowest bound of all others that are not.
	open   []*branch
	closed int64
	grown  int
}

// branch is the plans with certain numbers of machines. It is bounded by covers, or split in two.
type branch struct {
	bound  int64
	covers []cover // when there are numbers, the last one is kept in parts of machines

	// A split branch has those plans that launch at most few machines of the offer, and those that launch more.
	offer        int
	few          int64
	atMost, more *branch

	least, most []int64 // machines by offer; a most of -1 is any number
	// from is the relaxation of the branch that it is of, row what it adds to that.
	from *master
	row  *tally
	// steady are the worths of the best bound.
	steady []int64
}

// tally is a row of a relaxation beyond those of shapes: so many machines of some offers, at least, or, where the sign is -1, at most.
type tally struct {
	serves   []bool
	sign     float64
	machines int64
}

// Limits on the branching: how many branches there are and how many machines a plan may have, beyond the few only once there is nothing else left to prove,
// how many bounds are drawn for each, how many steps one counts, how near to a whole number is one, and which branches are rounded to plans, the first few and some others.
const (
	maxBranches    = 2000
	branchMachines = 200
	branchRounds   = 8
	branchCost     = 100
	branchNear     = 1e-4
	branchDives    = 3
	branchDive     = 8
)

// branchCare is how offers are priced for a branch, branchPart what part of a price a load has to be worth above it to matter.
var branchCare = care{800, 60}

const branchPart = 2000

// branchOut splits branches until the best plan is proven or the slice is spent. It reports whether it did anything.
func (h *prover) branchOut(slice int64) bool {
	if h.side.ctx.effort.done() || h.side.closed() || !h.ended() || h.side.many() {
		return false
	}
	if h.branching == nil || !slices.Equal(h.branching.proof.placed, h.proof.placed) {
		h.branching = h.beginBranching()
	}
	t, before, counted := h.branching, h.branching.grown, false
	for until := h.side.ctx.effort.left - slice; !h.side.ctx.effort.done() && !h.side.closed(); {
		counted = h.count(t, until) || counted
		b := h.next(t, until)
		if b == nil {
			break
		}
		t.open = t.open[1:]
		t.grown++
		h.grow(t, b, until)
		if low := min(t.lowest(), h.side.best.cost(h.side.ctx.problem).price); low > h.side.bound {
			h.side.bound, h.shown = low, t.root
		}
	}
	return counted || t.grown > before
}

// next is the branch to grow, nil where none is or where the effort is down to until.
func (h *prover) next(t *branching, until int64) *branch {
	if h.side.ctx.effort.left <= until || h.side.ctx.effort.done() || h.side.closed() || len(t.open) == 0 || t.grown == maxBranches {
		return nil
	}
	if b := t.open[0]; b.bound < h.side.best.cost(h.side.ctx.problem).price {
		return b
	}
	return nil
}

func (h *prover) beginBranching() *branching {
	t := &branching{
		proof:  proof{demand: h.proof.demand, placed: h.proof.placed, groups: h.proof.groups, cuts: slices.Clone(h.proof.cuts)},
		root:   &branch{least: make([]int64, len(h.side.ctx.problem.offers)), most: make([]int64, len(h.side.ctx.problem.offers))},
		closed: math.MaxInt64,
	}
	for i := range t.root.most {
		t.root.most[i] = -1
	}
	t.root.from, t.open = h.relaxed(&t.proof), []*branch{t.root}
	t.whole = t.root.from
	return t
}

// lowest is the bound of all branches together.
func (t *branching) lowest() int64 {
	if len(t.open) == 0 {
		return t.closed
	}
	return min(t.closed, t.open[0].bound)
}

// grow bounds a branch, and splits it unless no plan in it is better than the best.
func (h *prover) grow(t *branching, b *branch, until int64) {
	h.side.ctx.effort.spend(branchCost)
	g := b.from
	b.from = nil
	if b.row != nil {
		g = g.clone()
		g.require(*b.row)
		h.side.ctx.reoptimise(g)
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
		h.side.diveFrom(g, math.MaxInt64)
	}
	if offer < 0 {
		t.closed = min(t.closed, b.bound)
		return
	}
	serves := make([]bool, len(h.side.ctx.problem.offers))
	serves[offer] = true
	b.offer, b.few = offer, few
	b.atMost, b.more = b.child(g), b.child(g)
	b.atMost.most[offer], b.atMost.row = few, &tally{serves, -1, few}
	b.more.least[offer], b.more.row = few+1, &tally{serves, 1, few + 1}
	t.opened(b.atMost)
	t.opened(b.more)
}

// opened has a branch in its place among those that are open, behind those with the same bound.
func (t *branching) opened(b *branch) {
	at, _ := slices.BinarySearchFunc(t.open, b, func(x, y *branch) int { return cmp.Or(cmp.Compare(x.bound, y.bound), -1) })
	t.open = slices.Insert(t.open, at, b)
}

// child is a branch that begins as the whole of b.
func (b *branch) child(g *master) *branch {
	return &branch{bound: b.bound, covers: b.covers, from: g, least: slices.Clone(b.least), most: slices.Clone(b.most)}
}

// settle draws bounds of a branch, and reports whether no plan in it is better than the best, and, when it ends early, that its worths still move.
func (h *prover) settle(t *branching, b *branch, g *master, until int64) (done, moves bool) {
	p, swung := &t.proof, false
	for range branchRounds {
		prices, sum := h.charge(p, h.tolls(p, g))
		asked, values := h.counting(p, g, prices), g.values
		between := b == t.root && b.steady != nil && !swung
		if between {
			values = halfway(values, b.steady)
		}
		found := h.side.ctx.priceAll(values, p.placed, branchCare, func(t int) int64 { return above(asked[t], branchPart) })
		_, c := h.side.ctx.farley(values, p.placed, found, prices)
		h.draw(c, p.placed)
		if bound := saturating(sum, h.within(b, &c, prices)); bound > b.bound || b.covers == nil {
			b.bound, b.covers, b.steady = bound, append(p.demanding(), c), slices.Clone(values)
		}
		if b.bound >= h.side.best.cost(h.side.ctx.problem).price {
			return true, false
		}
		moved := h.learn(g, found)
		if !moved && !between {
			return false, false
		}
		pivots := g.pivots
		if moved {
			h.side.ctx.reoptimise(g)
		}
		swung = between && g.pivots == pivots
		if h.side.ctx.effort.done() || h.side.ctx.effort.left <= until {
			return false, true
		}
	}
	return false, false
}

// counting is the price of each machine with what the rows of a branch add to it and take off it.
func (h *prover) counting(p *proof, g *master, prices []int64) []int64 {
	out := slices.Clone(prices)
	for i := len(p.cuts); i < len(g.cuts); i++ {
		y := int64(min(max(0, g.y[len(g.rows)+i]), float64(MaxPrice)))
		for t, serves := range g.cuts[i].serves {
			if serves {
				out[t] = max(1, out[t]-int64(g.cuts[i].sign)*y)
			}
		}
	}
	return out
}

// within is the least price of machines of a branch that keep a cover, in parts of machines.
func (h *prover) within(b *branch, c *cover, prices []int64) int64 {
	need, price := c.need, int64(0)
	var order []int
	for t := range h.side.ctx.problem.offers {
		need -= mulDiv(c.most[t], b.least[t], 1)
		price = saturating(price, mulDiv(prices[t], b.least[t], 1))
		if c.most[t] > 0 && b.most[t] != b.least[t] {
			order = append(order, t)
		}
	}
	slices.SortStableFunc(order, func(s, t int) int { return compareProducts(prices[s], c.most[t], prices[t], c.most[s]) })
	for _, t := range order {
		if need <= 0 {
			return price
		}
		if n := b.most[t] - b.least[t]; b.most[t] >= 0 && need/n >= c.most[t] {
			need -= n * c.most[t]
			price = saturating(price, n*prices[t])
			continue
		}
		return saturating(price, mulDivUp(need, prices[t], c.most[t]))
	}
	if need > 0 {
		return math.MaxInt64
	}
	return price
}

// fraction is the offer of whose machines a relaxation launches the fraction that weighs most, and how many whole ones; -1 where there are whole ones only.
func (h *prover) fraction(g *master) (offer int, few int64) {
	n := make([]float64, len(h.side.ctx.problem.offers))
	for i, b := range g.basis {
		if b >= 0 && g.entries[b].offer >= 0 {
			n[g.entries[b].offer] += g.x[i]
		}
	}
	offer, weight := -1, 0.0
	for t := range n {
		whole := math.Floor(n[t] + branchNear)
		f := n[t] - whole
		if f < branchNear {
			continue
		}
		if w := min(f, 1-f) * float64(h.side.ctx.problem.offers[t].price); w > weight {
			offer, few, weight = t, int64(whole), w
		}
	}
	return offer, few
}

// clone is a relaxation that goes its own way from here.
func (m *master) clone() *master {
	c := *m
	c.work = nil
	c.columns, c.entries, c.basis, c.cuts = slices.Clone(m.columns), slices.Clone(m.entries), slices.Clone(m.basis), slices.Clone(m.cuts)
	c.demand, c.x, c.y, c.w, c.values = slices.Clone(m.demand), slices.Clone(m.x), slices.Clone(m.y), slices.Clone(m.w), slices.Clone(m.values)
	c.inverse = make([][]float64, len(m.inverse))
	for i := range c.inverse {
		c.inverse[i] = slices.Clone(m.inverse[i])
	}
	c.known = maps.Clone(m.known)
	return &c
}
