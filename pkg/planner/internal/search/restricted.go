package search

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/lp"
)

// composition is the restricted-master heuristic: it searches for the cheapest plan whose machines are loaded as in known columns, by branch and bound over
// the number of machines of each column. The relaxation of a part starts from the basis of the part before and takes a few dual simplex steps, so that many
// parts are solved in the time of one pricing.
type composition struct {
	master *Master
	live   []int // the entries that may be in a cheaper plan
	near   []int // those of them that may be in a cheaper plan of the part
	costs  []float64
	barred []bool // the entries of which the part has no more
	taken  []taking
	paid   float64 // the price of what is taken
	uneven []int   // the rows of the basis with the largest fractions of machines
	open   []*composed
	bars   []int // scratch of leave
	work   int   // row operations that are not charged yet
}

// taking is a number of machines that are loaded as in an entry.
type taking struct {
	entry int
	times float64
}

// composed is an open part: some machines are fixed, and some entries may not be used further.
type composed struct {
	bound  float64
	guess  float64 // an estimate of the price of its best plan
	basis  []int
	taken  []taking
	barred []int
}

// Limits on the composition: the number of open parts, the dual steps of a part, the rows that are compared to split it, the tolerance for whole numbers, the
// smallest pivot, and the number of rows above which it takes too long. A number of its row operations counts as one step: entries are short, and most of the
// time is spent waiting for memory.
const (
	composeOpen   = 500
	composeSteps  = 60
	composeWeighs = 8
	composeNear   = 1e-6
	composePivot  = 1e-7
	composeRows   = 80
	composeCost   = 130
)

// compose spends at most a slice on plans of the known columns. It first composes what remains besides the whole machines of the relaxation, then everything.
func (h *primal) compose(slice int64) {
	if len(h.state.g.Rows) > composeRows || h.state.best.Left.Total() > 0 {
		return
	}
	until := h.state.ctx.Effort.Left - slice
	c := h.composition()
	root := &composed{basis: slices.Clone(c.master.Basis), bound: c.master.total()}
	rest := &composed{basis: root.basis, bound: root.bound}
	for i, b := range c.master.Basis {
		if n := math.Floor(c.master.X[i] + composeNear); n > 0 && b >= 0 && c.master.Entries[b].Column >= 0 {
			rest.taken = append(rest.taken, taking{b, n})
		}
	}
	for _, from := range []*composed{rest, root} {
		for c.open = append(c.open[:0], from); len(c.open) > 0; {
			if h.state.ctx.Effort.Left <= until || h.state.ctx.Effort.Done() {
				return
			}
			next := c.open[0]
			c.open = slices.Delete(c.open, 0, 1)
			if next.bound <= h.cheaper() {
				h.composeFrom(c, next, until)
			}
		}
	}
}

// composition returns a composition of the columns of the relaxation, of those that dives found, and of the machines of the best plan.
func (h *primal) composition() *composition {
	c := &composition{master: h.state.residual(h.state.g, h.state.base)}
	c.master.expect(len(h.state.best.Machines) + len(h.state.pool.columns))
	for _, x := range h.state.best.Machines {
		c.master.add(column(x))
	}
	for _, x := range h.state.pool.columns {
		c.master.add(x)
	}
	h.state.ctx.reoptimise(c.master)
	c.barred = make([]bool, len(c.master.Entries))
	room := h.cheaper() - c.master.total()
	for i := range c.master.Entries {
		if c.master.Entries[i].Basic || c.master.reduced(i) <= room {
			c.live = append(c.live, i)
		}
	}
	return c
}

// cheaper returns the highest price of a plan that is cheaper than the best.
func (h *primal) cheaper() float64 { return float64(h.state.best.cost(h.state.ctx.Problem).Price - 1) }

// composeFrom narrows a part until it is a plan or contains no cheaper one. It leaves the other branches open.
func (h *primal) composeFrom(c *composition, part *composed, until int64) {
	c.begin(part)
	for h.state.ctx.Effort.Left > until && !h.state.ctx.Effort.Done() {
		most := h.cheaper()
		ok := c.settle(most)
		if ok {
			c.narrow(most)
		}
		at := split{row: -1}
		if ok {
			at = c.fraction(most)
		}
		h.state.ctx.Effort.Spend(1 + int64(c.work/composeCost))
		c.work = 0
		if !ok {
			return
		}
		if at.row < 0 {
			h.composePlan(c)
			return
		}
		entry, whole, now := c.master.Basis[at.row], math.Floor(c.master.X[at.row]), c.price()
		switch {
		case now+min(at.up, at.down) > most:
			return
		case at.down < at.up:
			if now+at.up <= most {
				c.leave(now+at.up, at.others, taking{entry, whole + 1}, -1)
			}
			c.take(at.row, whole)
			c.barred[entry] = true
		default:
			if now+at.down <= most {
				c.leave(now+at.down, at.others, taking{entry, whole}, entry)
			}
			c.take(at.row, whole+1)
		}
	}
}

// price returns the price of the relaxation of the part and of what is taken.
func (c *composition) price() float64 { return c.paid + c.master.total() }

// begin switches to a part.
func (c *composition) begin(part *composed) {
	for i := range c.master.Entries {
		c.master.Entries[i].Basic, c.barred[i] = false, false
	}
	copy(c.master.Basis, part.basis)
	for _, b := range c.master.Basis {
		if b >= 0 {
			c.master.Entries[b].Basic = true
		}
	}
	for _, b := range part.barred {
		c.barred[b] = true
	}
	c.taken, c.paid = append(c.taken[:0], part.taken...), 0
	for _, x := range c.taken {
		c.paid += float64(x.times * c.master.Entries[x.entry].Price)
	}
	c.near = append(c.near[:0], c.live...)
	c.refresh()
}

// refresh computes the inverse, the amounts and the duals again.
func (c *composition) refresh() {
	demand := slices.Clone(c.master.Demand)
	for _, x := range c.taken {
		e := &c.master.Entries[x.entry]
		for j, r := range e.Rows {
			demand[r] -= float64(x.times * e.Counts[j])
		}
	}
	c.master.invert()
	c.master.setAmounts(demand)
	c.master.setDuals()
	c.master.pivots = 0
	c.work += len(demand) * len(demand) * len(demand)
}

// settle makes dual simplex steps until the basis is feasible. It returns false if the part has no plan at a price of at most most.
func (c *composition) settle(most float64) bool {
	for range composeSteps {
		if c.price() > most {
			return false
		}
		row, worst, down := -1, composeNear, false
		for i, x := range c.master.X {
			if -x > worst {
				row, worst, down = i, -x, false
			} else if b := c.master.Basis[i]; x > worst && b >= 0 && c.barred[b] {
				row, worst, down = i, x, true
			}
		}
		if row < 0 {
			return true
		}
		enter := c.replacing(row, down)
		if enter == noEntry {
			return false
		}
		gain := c.master.reduced(enter)
		if c.master.setDirection(enter); math.Abs(c.master.W[row]) < lp.PivotMin {
			return false
		}
		c.master.exchange(enter, row, gain, c.master.X[row]/c.master.W[row])
		c.work += len(c.master.X) * len(c.master.X)
		if c.master.pivots++; c.master.pivots > refactorEvery {
			c.refresh()
		}
	}
	return false
}

// replacing returns the entry or surplus that costs least to increase or decrease the basic variable of a row.
func (c *composition) replacing(row int, down bool) int {
	of, best, least := c.master.Inverse[row], noEntry, math.Inf(1)
	sign := -1.0
	if down {
		sign = 1
	}
	c.work += 2 * entryWork * len(c.near)
	for _, i := range c.near {
		if c.master.Entries[i].Basic || c.barred[i] {
			continue
		}
		if a := sign * c.master.Entries[i].in(of); a > composePivot {
			if t := max(0, c.master.reduced(i)) / a; t < least {
				best, least = i, t
			}
		}
	}
	for r, v := range of {
		if a := -sign * v; a > composePivot {
			if t := max(0, c.master.Y[r]) / a; t < least {
				best, least = -1-r, t
			}
		}
	}
	return best
}

// entryWork is the number of row operations that an examined entry counts as.
const entryWork = 6

// narrow drops the entries that cannot be in a plan of the part at a price of at most most (reduced-cost fixing).
func (c *composition) narrow(most float64) {
	c.work += entryWork * len(c.near)
	room, kept := most-c.price(), c.near[:0]
	c.costs = c.costs[:0]
	for _, i := range c.near {
		cost := 0.0
		if !c.master.Entries[i].Basic {
			if cost = c.master.reduced(i); c.barred[i] || cost > room {
				continue
			}
		}
		kept, c.costs = append(kept, i), append(c.costs, max(0, cost))
	}
	c.near = kept
}

// split is a row of the basis with a fractional number of machines. It has the least cost of rounding it up and down, and the sum of such costs of the other
// fractions, each by itself.
type split struct {
	row              int
	up, down, others float64
}

// fraction returns the row of the basis, among those with the largest fractions, whose fraction costs most to round. It returns -1 if all are whole.
func (c *composition) fraction(most float64) split {
	out, sum, best := split{row: -1}, 0.0, 0.0
	room := most - c.price()
	for _, i := range c.fractions() {
		f := c.part(i)
		up, down := c.steepness(i)
		up, down = float64(up*(1-f)), float64(down*f)
		sum += min(up, down, room)
		if weight := max(1, min(up, room)) * max(1, min(down, room)); weight > best {
			out.row, out.up, out.down, best = i, up, down, weight
		}
	}
	out.others = sum - min(out.up, out.down, room)
	return out
}

// fractions returns the rows of the basis with fractions of machines. If there are many, it returns those with the most valuable fractions.
func (c *composition) fractions() []int {
	c.uneven = c.uneven[:0]
	for i, b := range c.master.Basis {
		if f := c.part(i); b >= 0 && c.master.Entries[b].Column >= 0 && f >= composeNear && f <= 1-composeNear {
			c.uneven = append(c.uneven, i)
		}
	}
	if len(c.uneven) > composeWeighs {
		weight := func(i int) float64 { return float64(min(c.part(i), 1-c.part(i)) * c.master.price(i)) }
		slices.SortStableFunc(c.uneven, func(i, j int) int { return cmp.Compare(weight(j), weight(i)) })
		c.uneven = c.uneven[:composeWeighs]
	}
	return c.uneven
}

// part returns the fraction of a machine in a row of the basis.
func (c *composition) part(row int) float64 { return c.master.X[row] - math.Floor(c.master.X[row]) }

// steepness returns the least cost of one unit more, and of one unit less, of the basic variable of a row.
func (c *composition) steepness(row int) (up, down float64) {
	of := c.master.Inverse[row]
	up, down = math.Inf(1), math.Inf(1)
	look := func(a, cost float64) {
		if a > composePivot {
			down = min(down, cost/a)
		} else if a < -composePivot {
			up = min(up, -cost/a)
		}
	}
	c.work += entryWork * len(c.near)
	for at, i := range c.near {
		if !c.master.Entries[i].Basic {
			look(c.master.Entries[i].in(of), c.costs[at])
		}
	}
	for r, v := range of {
		look(-v, max(0, c.master.Y[r]))
	}
	return up, down
}

// take makes machines of a row of the basis part of the plan.
func (c *composition) take(row int, times float64) {
	if times > 0 {
		entry := c.master.Basis[row]
		c.master.X[row] -= times
		c.taken = append(c.taken, taking{entry, times})
		c.paid += float64(times * c.master.Entries[entry].Price)
	}
}

// leave opens the part with more machines, in which the entry bar may not be used further, if it is not -1. The sum of the costs of fractions overestimates
// their joint cost, so half of it is used as an estimate. The parts with the lowest estimates come first. They are often deep, so that plans are found early.
func (c *composition) leave(bound, fractions float64, more taking, bar int) {
	if len(c.open) == composeOpen {
		return
	}
	c.bars = c.bars[:0]
	if bar >= 0 {
		c.bars = append(c.bars, bar)
	}
	for i, barred := range c.barred {
		if barred {
			c.bars = append(c.bars, i)
		}
	}
	part := &composed{bound: bound, guess: bound + float64(fractions/2), basis: slices.Clone(c.master.Basis), taken: c.taken, barred: slices.Clone(c.bars)}
	if more.times > 0 {
		part.taken = append(part.taken, more)
	}
	part.taken = slices.Clone(part.taken)
	at, _ := slices.BinarySearchFunc(c.open, part, func(x, y *composed) int { return cmp.Or(cmp.Compare(x.guess, y.guess), -1) })
	c.open = slices.Insert(c.open, at, part)
}

// composePlan makes a plan of a part with whole amounts, and keeps it if it is better than the best plan.
func (h *primal) composePlan(c *composition) {
	all := slices.Clone(c.taken)
	for i, b := range c.master.Basis {
		if n := math.Round(c.master.X[i]); b >= 0 && n > 0 {
			all = append(all, taking{b, n})
		}
	}
	s, limits := h.state.base.clone(), slices.Clone(h.state.ctx.Problem.Limits)
	for _, x := range all {
		if e := &c.master.Entries[x.entry]; e.Column >= 0 {
			h.state.ctx.launchColumn(s, c.master.columns[e.Column], int32(x.times), limits)
		}
	}
	h.state.ctx.downsize(s)
	h.state.best = better(h.state.ctx.Problem, h.state.best, s)
}
