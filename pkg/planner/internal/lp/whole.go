package lp

import (
	"cmp"
	"math"
	"slices"
)

// Whole is a branch and bound for solutions in which the amounts of some columns are whole. The relaxation of a part starts from the basis of the part before
// and takes a few dual simplex steps, so that many parts are solved in a short time. It is a heuristic: it gives up parts that take too long.
type Whole struct {
	// IsWhole reports whether the amount of a column has to be whole. Columns have no bounds.
	IsWhole func(column int) bool
	// Most returns the highest cost of a solution that is of interest.
	Most func() float64
	// Spend is called with the number of row operations of each step of the search, and Stopped reports whether to end it.
	Spend   func(operations int)
	Stopped func() bool
	// Found is called with the columns of a solution and their amounts. A column may occur twice.
	Found func([]Taken)

	simplex *Simplex
	demand  []float64
	live    []int // the columns that may be in a solution of interest
	near    []int // those of them that may be in a solution of the part
	costs   []float64
	taken   []Taken
	paid    float64 // the cost of the taken columns
	uneven  []int   // the rows of the basis with the most expensive fractions
	open    []*part
	spent   int // row operations that are not charged yet
}

// Taken is an amount of a column.
type Taken struct {
	Column int
	Amount float64
}

// part is an open part of the solutions: some amounts are fixed, and no more of the barred columns may be used.
type part struct {
	bound  float64
	guess  float64 // an estimate of the cost of its best solution
	basis  []int
	taken  []Taken
	barred []int
}

// Limits on the search.
const (
	maxOpen     = 500  // open parts
	dualSteps   = 60   // dual steps of a part
	maxCompared = 8    // rows that are compared to split a part
	nearWhole   = 1e-6 // tolerance for whole numbers
	minDualStep = 1e-7 // smallest pivot of a dual step
	// examined is the number of row operations that examining a column costs. Columns are short, and most of the time is spent waiting for memory.
	examined = 6
)

// Search changes the program, whose solution has to be optimal. It first searches for solutions that contain the whole amounts of the current solution, then
// for all.
func (w *Whole) Search(s *Simplex) {
	w.simplex, w.demand = s, slices.Clone(s.demand)
	cost := s.Cost()
	room := w.Most() - cost
	for j := range s.columns {
		if s.columns[j].at >= 0 || s.reduced(j) <= room {
			w.live = append(w.live, j)
		}
	}
	all := &part{basis: slices.Clone(s.basis), bound: cost}
	rest := &part{basis: all.basis, bound: cost}
	for j, x := range s.Basic() {
		if n := math.Floor(x + nearWhole); n > 0 && w.IsWhole(j) {
			rest.taken = append(rest.taken, Taken{j, n})
		}
	}
	for _, from := range []*part{rest, all} {
		for w.open = append(w.open[:0], from); len(w.open) > 0; {
			if w.Stopped() {
				return
			}
			next := w.open[0]
			w.open = slices.Delete(w.open, 0, 1)
			if next.bound <= w.Most() {
				w.narrowDown(next)
			}
		}
	}
}

// narrowDown narrows a part until it is a solution or contains none of interest. It leaves the other branches open.
func (w *Whole) narrowDown(from *part) {
	w.begin(from)
	for !w.Stopped() {
		most := w.Most()
		ok := w.settle(most)
		at := split{row: -1}
		if ok {
			w.narrow(most)
			at = w.fraction(most)
		}
		w.Spend(w.spent)
		w.spent = 0
		if !ok {
			return
		}
		if at.row < 0 {
			w.found()
			return
		}
		column, whole, now := w.simplex.basis[at.row], math.Floor(w.simplex.amounts[at.row]), w.cost()
		switch {
		case now+min(at.up, at.down) > most:
			return
		case at.down < at.up:
			if now+at.up <= most {
				w.postpone(now+at.up, at.others, Taken{column, whole + 1}, -1)
			}
			w.take(at.row, whole)
			w.bar(column)
		default:
			if now+at.down <= most {
				w.postpone(now+at.down, at.others, Taken{column, whole}, column)
			}
			w.take(at.row, whole+1)
		}
	}
}

// found reports the solution of a part.
func (w *Whole) found() {
	all := slices.Clone(w.taken)
	for j, x := range w.simplex.Basic() {
		if n := math.Round(x); n > 0 {
			all = append(all, Taken{j, n})
		}
	}
	w.Found(all)
}

// cost returns the cost of the part's relaxation plus that of the taken columns.
func (w *Whole) cost() float64 { return w.paid + w.simplex.Cost() }

// bar forbids further use of a column.
func (w *Whole) bar(column int) { w.simplex.columns[column].most = 0 }

// begin switches to a part.
func (w *Whole) begin(from *part) {
	s := w.simplex
	for _, j := range w.live {
		s.columns[j].at, s.columns[j].most = empty, math.Inf(1)
	}
	copy(s.basis, from.basis)
	for r, b := range s.basis {
		if b >= 0 {
			s.columns[b].at = r
		}
	}
	for _, j := range from.barred {
		w.bar(j)
	}
	w.taken, w.paid = append(w.taken[:0], from.taken...), 0
	copy(s.demand, w.demand)
	for _, x := range w.taken {
		c := &s.columns[x.Column]
		w.paid += float64(x.Amount * c.price)
		for i, r := range c.rows {
			s.demand[r] -= float64(x.Amount * c.coefficients[i])
		}
	}
	w.near = append(w.near[:0], w.live...)
	w.refresh()
}

// refresh computes the inverse, the amounts and the duals again.
func (w *Whole) refresh() {
	w.simplex.refresh()
	n := len(w.demand)
	w.spent += n * n * n
}

// settle makes dual simplex steps until the solution satisfies all rows. It returns false if the part has no solution within the cost most.
func (w *Whole) settle(most float64) bool {
	s := w.simplex
	for range dualSteps {
		if w.cost() > most {
			return false
		}
		row, worst, down := -1, nearWhole, false
		for i, x := range s.amounts {
			if -x > worst {
				row, worst, down = i, -x, false
			} else if over := x - s.bound(i); over > worst {
				row, worst, down = i, over, true
			}
		}
		if row < 0 {
			return true
		}
		enter, ok := w.replacing(row, down)
		if !ok {
			return false
		}
		if s.setDirection(enter); math.Abs(s.direction[row]) < minPivot {
			return false
		}
		s.exchange(enter, row, 0, s.amounts[row]/s.direction[row], empty)
		w.spent += len(s.amounts) * len(s.amounts)
		if s.pivots == invertEvery {
			w.refresh()
		}
	}
	return false
}

// replacing returns the column or surplus that costs least to increase or decrease the basic variable of a row. ok is false if there is none.
func (w *Whole) replacing(row int, down bool) (enter int, ok bool) {
	s, of, least := w.simplex, w.simplex.inverse[row], math.Inf(1)
	sign := -1.0
	if down {
		sign = 1
	}
	w.spent += 2 * examined * len(w.near)
	for _, j := range w.near {
		c := &s.columns[j]
		if c.at >= 0 || c.most == 0 {
			continue
		}
		if a := sign * c.in(of); a > minDualStep {
			if t := max(0, s.reduced(j)) / a; t < least {
				enter, least, ok = j, t, true
			}
		}
	}
	for r, v := range of {
		if a := -sign * v; a > minDualStep {
			if t := max(0, s.duals[r]) / a; t < least {
				enter, least, ok = -1-r, t, true
			}
		}
	}
	return enter, ok
}

// narrow drops the columns that cannot be in a solution of the part that costs no more than most (reduced-cost fixing).
func (w *Whole) narrow(most float64) {
	w.spent += examined * len(w.near)
	room, kept := most-w.cost(), w.near[:0]
	w.costs = w.costs[:0]
	for _, j := range w.near {
		c, cost := &w.simplex.columns[j], 0.0
		if c.at < 0 {
			if cost = w.simplex.reduced(j); c.most == 0 || cost > room {
				continue
			}
		}
		kept, w.costs = append(kept, j), append(w.costs, max(0, cost))
	}
	w.near = kept
}

// split is a row of the basis whose amount is a fraction. It has the least cost of rounding it up and down, and the sum of such costs of the other fractions,
// each by itself.
type split struct {
	row              int
	up, down, others float64
}

// fraction returns the row, among those with the most expensive fractions, whose fraction costs most to round. Its row is -1 if all amounts are whole.
func (w *Whole) fraction(most float64) split {
	out, sum, best := split{row: -1}, 0.0, 0.0
	room := most - w.cost()
	for _, i := range w.fractions() {
		f := w.fractionOf(i)
		up, down := w.steepness(i)
		up, down = float64(up*(1-f)), float64(down*f)
		sum += min(up, down, room)
		if weight := max(1, min(up, room)) * max(1, min(down, room)); weight > best {
			out.row, out.up, out.down, best = i, up, down, weight
		}
	}
	out.others = sum - min(out.up, out.down, room)
	return out
}

// fractions returns the rows of the basis with fractions. If there are many, it returns those with the most expensive fractions.
func (w *Whole) fractions() []int {
	w.uneven = w.uneven[:0]
	for i, b := range w.simplex.basis {
		if f := w.fractionOf(i); b >= 0 && w.IsWhole(b) && f >= nearWhole && f <= 1-nearWhole {
			w.uneven = append(w.uneven, i)
		}
	}
	if len(w.uneven) > maxCompared {
		weight := func(i int) float64 { return float64(min(w.fractionOf(i), 1-w.fractionOf(i)) * w.simplex.price(i)) }
		slices.SortStableFunc(w.uneven, func(i, j int) int { return cmp.Compare(weight(j), weight(i)) })
		w.uneven = w.uneven[:maxCompared]
	}
	return w.uneven
}

// fractionOf returns the fraction of the amount in a row of the basis.
func (w *Whole) fractionOf(row int) float64 {
	x := w.simplex.amounts[row]
	return x - math.Floor(x)
}

// steepness returns the least cost of one unit more, and of one unit less, of the basic variable of a row.
func (w *Whole) steepness(row int) (up, down float64) {
	of := w.simplex.inverse[row]
	up, down = math.Inf(1), math.Inf(1)
	look := func(a, cost float64) {
		if a > minDualStep {
			down = min(down, cost/a)
		} else if a < -minDualStep {
			up = min(up, -cost/a)
		}
	}
	w.spent += examined * len(w.near)
	for at, j := range w.near {
		if c := &w.simplex.columns[j]; c.at < 0 {
			look(c.in(of), w.costs[at])
		}
	}
	for r, v := range of {
		look(-v, max(0, w.simplex.duals[r]))
	}
	return up, down
}

// take fixes a part of the amount in a row of the basis.
func (w *Whole) take(row int, amount float64) {
	if amount > 0 {
		column := w.simplex.basis[row]
		w.simplex.amounts[row] -= amount
		w.taken = append(w.taken, Taken{column, amount})
		w.paid += float64(amount * w.simplex.columns[column].price)
	}
}

// postpone opens the part with more of a column, in which the column bar may not be used further, if it is not -1. The sum of the costs of fractions overestimates
// their joint cost, so half of it is used as an estimate. The parts with the lowest estimates come first. They are often deep, so that solutions are found
// early.
func (w *Whole) postpone(bound, fractions float64, more Taken, bar int) {
	if len(w.open) == maxOpen {
		return
	}
	p := &part{bound: bound, guess: bound + float64(fractions/2), basis: slices.Clone(w.simplex.basis), taken: slices.Clone(w.taken)}
	if more.Amount > 0 {
		p.taken = append(p.taken, more)
	}
	if bar >= 0 {
		p.barred = append(p.barred, bar)
	}
	for _, j := range w.live {
		if w.simplex.columns[j].most == 0 {
			p.barred = append(p.barred, j)
		}
	}
	at, _ := slices.BinarySearchFunc(w.open, p, func(x, y *part) int { return cmp.Or(cmp.Compare(x.guess, y.guess), -1) })
	w.open = slices.Insert(w.open, at, p)
}
