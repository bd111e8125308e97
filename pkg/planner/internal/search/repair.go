package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// NewRepair returns a search for machines whose cost does not exceed most. It reuses the memory of the context, so the previous one becomes invalid.
func NewRepair(m *Context, values []int64, limits pack.Limits, steps int, most pack.Cost) *Repair {
	t := &m.rebuy
	t.ctx, t.values, t.limits, t.steps, t.best, t.found, t.least = m, values, limits, steps, most, false, nil
	return t
}

// Run reports whether it found machines for the waiting pods within the allowed cost. The machines are then in t.Kept.
func (t *Repair) Run(waiting pack.Load) bool {
	for i := range t.ctx.oracle.Machines {
		if t.affords(i, pack.Cost{}) {
			t.ctx.oracle.Machines[i].Knapsack.Aim(t.values, waiting)
		}
	}
	t.try(waiting, pack.Cost{})
	return t.found
}

func (t *Repair) try(waiting pack.Load, so pack.Cost) {
	total := waiting.Total()
	if len(t.shortlists) == len(t.stack) {
		t.shortlists = append(t.shortlists, &shortlist{repair: t})
	}
	s := t.shortlists[len(t.stack)]
	next := s.candidates(waiting, so, total)
	if total == 0 || len(next) == 0 {
		so.Left = total
		if so.Less(t.best) || !t.found && so == t.best {
			t.keep(waiting, so)
		}
		return
	}
	for _, x := range next {
		if t.steps <= 0 && t.found {
			return
		}
		t.steps--
		o := &t.ctx.Problem.Offers[x.Offer]
		after := so.Plus(pack.Cost{Price: o.Price, Machines: 1})
		if t.best.Left == 0 && after.Price > t.best.Price {
			continue
		}
		s.rest = append(s.rest[:0], waiting...)
		s.rest.Add(x.Load, -1)
		if t.least != nil && t.best.Left == 0 && after.Price+pack.Worth(t.least, s.rest)/pricing.Scale-supply(t.limits, t.ctx.linearStocks) > t.best.Price {
			continue
		}
		t.limits.Launch(&o.Charge)
		t.stack = append(t.stack, x)
		t.try(s.rest, after)
		t.stack = t.stack[:len(t.stack)-1]
		t.limits.GiveBack(&o.Charge)
		if t.steps <= -RebuySteps*4 {
			return
		}
	}
}

// keep copies the machines on the stack as the best so far. Their loads are scratch space.
func (t *Repair) keep(waiting pack.Load, so pack.Cost) {
	t.found, t.best, t.Left, t.Kept = true, so, slices.Clone(waiting), t.Kept[:0]
	for _, x := range t.stack {
		t.Kept = append(t.Kept, Machine{x.Offer, slices.Clone(x.Load)})
	}
}

// finish returns the cheapest offer that holds all waiting pods, or -1.
func (t *Repair) finish(waiting pack.Load, so pack.Cost) int {
	var need amount.Vector
	for k, n := range waiting {
		if n == 0 {
			continue
		}
		for d, r := range t.ctx.Problem.Shapes[k].Request {
			need[d] = amount.Saturating(need[d], amount.MulDiv(r, int64(n), 1))
		}
	}
	for _, i := range t.ctx.byPrice {
		o := &t.ctx.Problem.Offers[i]
		if t.best.Left == 0 && so.Price+o.Price > t.best.Price {
			break
		}
		if !t.limits.Admits(&o.Charge) {
			continue
		}
		small := false
		for d, x := range need {
			small = small || x > o.Free[d]
		}
		if !small && t.ctx.holds(i, waiting) {
			return i
		}
	}
	return -1
}

// candidateSteps is the number of steps of the search of one offer. candidateCost is its additional cost. Most offers are quickly known to be worth too
// little.
const (
	// RebuySteps is the number of partial plans that one repair examines. rebuyWidth is the number of machines tried next in each.
	RebuySteps     = 10
	rebuyWidth     = 3
	candidateSteps = 24
	candidateCost  = 2
)

// candidates returns what may be bought next: the cheapest machine that holds everything, then those with the greatest worth per price.
func (s *shortlist) candidates(waiting pack.Load, so pack.Cost, total int64) []Machine {
	s.next, s.n = s.next[:0], 0
	if total == 0 {
		return nil
	}
	s.repair.ctx.Effort.Spend(int64(len(waiting) / 10))
	if i := s.repair.finish(waiting, so); i >= 0 {
		s.next = append(s.next, Machine{i, waiting})
	}
	for i := range s.repair.ctx.oracle.Machines {
		if !s.repair.affords(i, so) {
			continue
		}
		k := &s.repair.ctx.oracle.Machines[i]
		v, _ := k.Knapsack.Search(waiting, candidateSteps, s.floor(i))
		s.repair.ctx.Effort.Spend(int64(candidateCost + candidateSteps - max(0, k.Knapsack.Steps)))
		if v > 0 && k.Knapsack.Best.Total() < total {
			s.consider(i, k.Knapsack.Best, v)
		}
	}
	for _, c := range s.best[:s.n] {
		s.next = append(s.next, c.Machine)
	}
	return s.next
}

// affords reports whether a machine may be bought in addition to those bought so far.
func (t *Repair) affords(offer int, so pack.Cost) bool {
	o := &t.ctx.Problem.Offers[offer]
	return (t.best.Left > 0 || so.Price+o.Price <= t.best.Price) && t.limits.Admits(&o.Charge)
}

// floor returns the worth that a machine has to exceed to be on the list.
func (s *shortlist) floor(offer int) int64 {
	if s.n < rebuyWidth {
		return 0
	}
	last := &s.best[rebuyWidth-1]
	return amount.MulDiv(last.value, s.repair.ctx.cost(offer), s.repair.ctx.cost(last.Offer))
}

func (s *shortlist) consider(offer int, l pack.Load, value int64) {
	at := s.n
	for at > 0 && amount.CompareProducts(value, s.repair.ctx.cost(s.best[at-1].Offer), s.best[at-1].value, s.repair.ctx.cost(offer)) > 0 {
		at--
	}
	if at >= rebuyWidth {
		return
	}
	room := s.best[rebuyWidth].Load
	copy(s.best[at+1:], s.best[at:])
	s.best[at].Machine, s.best[at].value = Machine{offer, append(room[:0], l...)}, value
	s.n = min(s.n+1, rebuyWidth)
}
