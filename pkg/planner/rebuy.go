package planner

import "slices"

// rebuy is a short branch and bound for the machines to buy for a few waiting pods.
type rebuy struct {
	*mixer
	values []int64
	limits []usage
	steps  int
	stack  []machine
	best   cost
	kept   []machine
	left   load
	found  bool
}

// newRebuy looks for machines that cost at most the given cost.
func newRebuy(m *mixer, values []int64, limits []usage, steps int, most cost) *rebuy {
	return &rebuy{mixer: m, values: values, limits: limits, steps: steps, best: most}
}

// run reports whether it found machines for the waiting pods that cost at most t.best; then they are in t.kept.
func (t *rebuy) run(waiting load) bool {
	for i := range t.offered {
		if t.promising(i) {
			t.offered[i].aim(t.values, waiting)
		}
	}
	t.try(waiting, cost{})
	return t.found
}

func (t *rebuy) try(waiting load, so cost) {
	total := waiting.total()
	next := t.candidates(waiting, so, total)
	if total == 0 || len(next) == 0 {
		so.left = total
		if so.less(t.best) || !t.found && so == t.best {
			t.found, t.best, t.left = true, so, slices.Clone(waiting)
			t.kept = append(t.kept[:0], t.stack...)
		}
		return
	}
	for _, x := range next {
		if t.steps <= 0 && t.found {
			return
		}
		t.steps--
		o := &t.offers[x.offer]
		after := so.plus(cost{price: o.price, machines: 1})
		if t.best.left == 0 && after.price > t.best.price {
			continue
		}
		rest := slices.Clone(waiting)
		rest.add(x.load, -1)
		t.limits[o.pool].launch(o.uses)
		t.stack = append(t.stack, x)
		t.try(rest, after)
		t.stack = t.stack[:len(t.stack)-1]
		t.limits[o.pool].giveBack(o.uses)
		if t.steps <= -rebuySteps*4 {
			return
		}
	}
}

// finish returns the cheapest offer that holds all that waits, or -1.
func (t *rebuy) finish(waiting load, so cost) int {
	var need vec
	for k, n := range waiting {
		for d, r := range t.shapes[k].request {
			need[d] = saturating(need[d], mulDiv(r, int64(n), 1))
		}
	}
	for _, i := range t.cheap {
		o := &t.offers[i]
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
		if !small && t.holds(i, waiting) {
			return i
		}
	}
	return -1
}

// candidates returns what may be bought next: the cheapest machine that holds everything, then those with the most worth for their price.
func (t *rebuy) candidates(waiting load, so cost, total int64) []machine {
	if total == 0 {
		return nil
	}
	var out []machine
	next := shortlist{rebuy: t}
	t.effort.spend(int64(len(waiting)/10 + len(t.known)/20))
	if i := t.finish(waiting, so); i >= 0 {
		out = append(out, machine{i, slices.Clone(waiting)})
	}
	for _, c := range t.known {
		if t.affords(c.offer, so) && c.load.under(waiting) {
			next.consider(c.offer, c.load, worth(t.values, c.load))
		}
	}
	for i := range t.offered {
		if !t.affords(i, so) {
			continue
		}
		k := &t.offered[i]
		v, _ := k.search(waiting, 24, 0)
		t.effort.spend(int64(24 - max(0, k.steps)))
		if v > 0 && k.best.total() < total {
			next.consider(i, k.best, v)
		}
	}
	for _, c := range next.best[:next.n] {
		out = append(out, c.machine)
	}
	return out
}

// affords reports whether a machine may be bought after what was, and is worth a look.
func (t *rebuy) affords(offer int, so cost) bool {
	o := &t.offers[offer]
	return t.promising(offer) && (t.best.left > 0 || so.price+o.price <= t.best.price) && t.limits[o.pool].admits(o.uses)
}

// shortlist is the few machines with the most worth for their price, the best first.
type shortlist struct {
	*rebuy
	best [rebuyWidth + 1]struct {
		machine
		value int64
	}
	n int
}

func (s *shortlist) consider(offer int, l load, value int64) {
	at := s.n
	for at > 0 && compareProducts(value, s.offers[s.best[at-1].offer].price, s.best[at-1].value, s.offers[offer].price) > 0 {
		at--
	}
	if at >= rebuyWidth {
		return
	}
	copy(s.best[at+1:], s.best[at:])
	s.best[at].machine, s.best[at].value = machine{offer, slices.Clone(l)}, value
	s.n = min(s.n+1, rebuyWidth)
}
