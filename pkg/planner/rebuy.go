package planner

import "slices"

// rebuy is a short branch and bound for the machines to buy for a few waiting pods.
type rebuy struct {
	ctx    *mixer
	values []int64
	limits []usage
	steps  int
	stack  []machine
	best   cost
	kept   []machine
	left   load
	found  bool
	// shortlists are scratch, one for as many machines on the stack.
	shortlists []*shortlist
}

// newRebuy looks for machines that cost at most the given cost. It is the one that the mixer has, so that the one before is done with.
func newRebuy(m *mixer, values []int64, limits []usage, steps int, most cost) *rebuy {
	t := &m.rebuy
	t.ctx, t.values, t.limits, t.steps, t.best, t.found = m, values, limits, steps, most, false
	return t
}

// run reports whether it found machines for the waiting pods that cost at most t.best; then they are in t.kept.
func (t *rebuy) run(waiting load) bool {
	for i := range t.ctx.oracle.machines {
		if t.ctx.promising(i) {
			t.ctx.oracle.machines[i].knapsack.aim(t.values, waiting)
		}
	}
	t.try(waiting, cost{})
	return t.found
}

func (t *rebuy) try(waiting load, so cost) {
	total := waiting.total()
	if len(t.shortlists) == len(t.stack) {
		t.shortlists = append(t.shortlists, &shortlist{repair: t})
	}
	s := t.shortlists[len(t.stack)]
	next := s.candidates(waiting, so, total)
	if total == 0 || len(next) == 0 {
		so.left = total
		if so.less(t.best) || !t.found && so == t.best {
			t.keep(waiting, so)
		}
		return
	}
	for _, x := range next {
		if t.steps <= 0 && t.found {
			return
		}
		t.steps--
		o := &t.ctx.problem.offers[x.offer]
		after := so.plus(cost{price: o.price, machines: 1})
		if t.best.left == 0 && after.price > t.best.price {
			continue
		}
		s.rest = append(s.rest[:0], waiting...)
		s.rest.add(x.load, -1)
		t.limits[o.pool].launch(o.uses)
		t.stack = append(t.stack, x)
		t.try(s.rest, after)
		t.stack = t.stack[:len(t.stack)-1]
		t.limits[o.pool].giveBack(o.uses)
		if t.steps <= -rebuySteps*4 {
			return
		}
	}
}

// keep makes the machines on the stack the best so far. Their loads are scratch.
func (t *rebuy) keep(waiting load, so cost) {
	t.found, t.best, t.left, t.kept = true, so, slices.Clone(waiting), t.kept[:0]
	for _, x := range t.stack {
		t.kept = append(t.kept, machine{x.offer, slices.Clone(x.load)})
	}
}

// finish returns the cheapest offer that holds all that waits, or -1.
func (t *rebuy) finish(waiting load, so cost) int {
	var need vec
	for k, n := range waiting {
		for d, r := range t.ctx.problem.shapes[k].request {
			need[d] = saturating(need[d], mulDiv(r, int64(n), 1))
		}
	}
	for _, i := range t.ctx.cheap {
		o := &t.ctx.problem.offers[i]
		if t.best.left == 0 && so.price+o.price > t.best.price {
			break
		}
		if !t.limits[o.pool].admits(o.uses) {
			continue
		}
		small := false
		for d, x := range need {
			small = small || x > o.free[d]
		}
		if !small && t.ctx.holds(i, waiting) {
			return i
		}
	}
	return -1
}

// candidateSteps is how many steps one offer is looked at, candidateCost what it counts besides: most are known at once to be worth too little.
const (
	candidateSteps = 24
	candidateCost  = 2
)

// candidates returns what may be bought next: the cheapest machine that holds everything, then those with the most worth for their price.
func (s *shortlist) candidates(waiting load, so cost, total int64) []machine {
	s.next, s.n = s.next[:0], 0
	if total == 0 {
		return nil
	}
	s.repair.ctx.effort.spend(int64(len(waiting)/10 + len(s.repair.ctx.known)/20))
	if i := s.repair.finish(waiting, so); i >= 0 {
		s.next = append(s.next, machine{i, waiting})
	}
	for _, c := range s.repair.ctx.known {
		if s.repair.affords(c.offer, so) && c.load.under(waiting) {
			s.consider(c.offer, c.load, worth(s.repair.values, c.load))
		}
	}
	for i := range s.repair.ctx.oracle.machines {
		if !s.repair.affords(i, so) {
			continue
		}
		k := &s.repair.ctx.oracle.machines[i]
		v, _ := k.knapsack.search(waiting, candidateSteps, s.floor(i))
		s.repair.ctx.effort.spend(int64(candidateCost + candidateSteps - max(0, k.knapsack.steps)))
		if v > 0 && k.knapsack.best.total() < total {
			s.consider(i, k.knapsack.best, v)
		}
	}
	for _, c := range s.best[:s.n] {
		s.next = append(s.next, c.machine)
	}
	return s.next
}

// affords reports whether a machine may be bought after what was, and is worth a look.
func (t *rebuy) affords(offer int, so cost) bool {
	o := &t.ctx.problem.offers[offer]
	return t.ctx.promising(offer) && (t.best.left > 0 || so.price+o.price <= t.best.price) && t.limits[o.pool].admits(o.uses)
}

// shortlist is the few machines with the most worth for their price, the best first. The load of the one behind them is room for another.
type shortlist struct {
	repair *rebuy
	next   []machine // what may be bought
	rest   load      // what waits when one of them was
	best   [rebuyWidth + 1]struct {
		machine
		value int64
	}
	n int
}

// floor is what a machine has to be worth more than to be among them.
func (s *shortlist) floor(offer int) int64 {
	if s.n < rebuyWidth {
		return 0
	}
	last := &s.best[rebuyWidth-1]
	return mulDiv(last.value, s.repair.ctx.problem.offers[offer].price, s.repair.ctx.problem.offers[last.offer].price)
}

func (s *shortlist) consider(offer int, l load, value int64) {
	at := s.n
	for at > 0 && compareProducts(value, s.repair.ctx.problem.offers[s.best[at-1].offer].price, s.best[at-1].value, s.repair.ctx.problem.offers[offer].price) > 0 {
		at--
	}
	if at >= rebuyWidth {
		return
	}
	room := s.best[rebuyWidth].load
	copy(s.best[at+1:], s.best[at:])
	s.best[at].machine, s.best[at].value = machine{offer, append(room[:0], l...)}, value
	s.n = min(s.n+1, rebuyWidth)
}
