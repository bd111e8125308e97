package search

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// measures returns worths that always give useful covers: the duals, the worths from prices of resources, and the requests of each resource.
func (h *dual) measures(at pack.Load) [][]int64 {
	out := [][]int64{h.state.values()}
	if h.state.ctx.linear != nil {
		out = append(out, h.state.ctx.linear)
	}
	for _, d := range []int{amount.Replicas, amount.CPU, amount.Memory, amount.GPUMemory} {
		var total int64
		for k, n := range at {
			total = amount.Saturating(total, amount.MulDiv(h.state.ctx.Problem.Shapes[k].Request[d], int64(n), 1))
		}
		shift := 0
		for total>>shift > 1<<40 {
			shift++
		}
		out = append(out, h.each(func(k int) int64 { return h.state.ctx.Problem.Shapes[k].Request[d] >> shift }))
	}
	return out
}

func (h *dual) each(value func(k int) int64) []int64 {
	out := make([]int64, len(h.state.ctx.Problem.Shapes))
	for k := range out {
		out[k] = value(k)
	}
	return out
}

// cover returns the cover of the given worths.
func (h *dual) cover(values []int64, at pack.Load, limit pricing.Effort) cover {
	c := cover{need: pack.Worth(values, at)}
	c.subtract(h.state.ctx, h.state.ctx.priceNodeGroups(nil, values, at, nodeEffort, 0))
	found := h.state.ctx.PriceAll(values, at, limit, func(int) int64 { return 0 })
	for t := range found {
		c.most = append(c.most, min(found[t].Upper, max(0, c.need)))
	}
	return c
}

// integerCover is the search for the cheapest whole numbers of machines that satisfy all covers.
type integerCover struct {
	problem *pack.Problem
	covers  []cover
	duals   []int64 // of the stocks, as in charged
	// asked are the prices with the worth of what the machines draw, and left is what they leave of the stocks.
	asked []int64
	left  pack.Limits
	order []int // the offers, the most expensive first
	// cheapest is, for each position of the order and each cover, the offer from there on with the lowest asked price per worth of the cover. It is -1 if there
	// is none.
	cheapest [][]int
	best     int64 // no machines at this or a higher price are of interest
	open     int64 // the lowest price that was left unsearched
	steps    int
	sharp    int // the cover that pruned last
	// counts are the numbers of machines of the current part. found are those of the best solution.
	counts, found []int64
}

// newIntegerCover starts a search with a number of steps for machines at a price lower than below.
func newIntegerCover(p *pack.Problem, covers []cover, duals []int64, below int64, steps int) *integerCover {
	l := &integerCover{problem: p, covers: covers, duals: duals, left: p.Limits.Clone(), best: below, open: below, steps: steps, counts: make([]int64, len(p.Offers))}
	for t := range p.Offers {
		o := &p.Offers[t]
		l.order, l.asked = append(l.order, t), append(l.asked, amount.Saturating(o.Price, drawn(o, duals)))
	}
	slices.SortStableFunc(l.order, func(a, b int) int { return -cmp.Compare(l.asked[a], l.asked[b]) })
	l.prepare()
	return l
}

// search returns a lower bound on the price of machines that satisfy all covers.
func (l *integerCover) search() int64 {
	need := make([]int64, len(l.covers))
	for r := range need {
		need[r] = l.covers[r].need
	}
	l.try(0, 0, need)
	return min(l.best, l.open)
}

func (l *integerCover) prepare() {
	l.cheapest = make([][]int, len(l.order)+1)
	last := make([]int, len(l.covers))
	for r := range last {
		last[r] = -1
	}
	l.cheapest[len(l.order)] = last
	for i, t := range slices.Backward(l.order) {
		row := slices.Clone(l.cheapest[i+1])
		for r, c := range l.covers {
			if b := row[r]; c.most[t] > 0 && (b < 0 || amount.CompareProducts(l.asked[t], c.most[b], l.asked[b], c.most[t]) < 0) {
				row[r] = t
			}
		}
		l.cheapest[i] = row
	}
}

// lowerBound returns a lower bound on the price of what is still needed, with the offers from position i on, by the strongest cover. done reports whether nothing
// is needed. ok is false if there is no solution below the given price. The cover that pruned last is examined first.
func (l *integerCover) lowerBound(i int, need []int64, below int64) (price int64, done, ok bool) {
	done = true
	saved := supply(l.left, l.duals)
	for j := range need {
		r := j
		switch {
		case j == 0:
			r = l.sharp
		case j <= l.sharp:
			r = j - 1
		}
		n := need[r]
		if n <= 0 {
			continue
		}
		done = false
		t := l.cheapest[i][r]
		if t < 0 {
			l.sharp = r
			return 0, false, false
		}
		if price = max(price, amount.MulDivUp(n, l.asked[t], l.covers[r].most[t])-saved); price >= below {
			l.sharp = r
			return 0, false, false
		}
	}
	return price, done, true
}

func (l *integerCover) try(i int, price int64, need []int64) {
	more, done, ok := l.lowerBound(i, need, l.best-price)
	if !ok || price >= l.best {
		return
	}
	if done {
		l.best, l.found = price, slices.Clone(l.counts)
		return
	}
	if l.steps <= 0 {
		l.open = min(l.open, price+more)
		return
	}
	l.steps--
	t := l.order[i]
	most := int64(0)
	for r, n := range need {
		if c := l.covers[r].most[t]; n > 0 && c > 0 {
			most = max(most, (n-1)/c+1)
		}
	}
	o := &l.problem.Offers[t]
	most = min(most, (l.best-price)/o.Price)
	for _, d := range o.Draws {
		most = min(most, l.left.Stock(d.Stock)/d.Amount)
	}
	rest := make([]int64, len(need))
	for n := int64(0); n <= most; n++ {
		for r := range need {
			rest[r] = need[r] - n*l.covers[r].most[t]
		}
		l.counts[t] = n
		l.left.Draw(o.Draws, n)
		l.try(i+1, price+n*o.Price, rest)
		l.left.Draw(o.Draws, -n)
	}
	l.counts[t] = 0
}
