package planner

import "slices"

// settle takes a few machines apart again and again, houses their pods where there is room, launches for the rest, and keeps what is no dearer: machines
// that leave, machines that stay after all, others launched, rooms filled anew.
func (v *settler) settle(idle int) {
	v.noisy = make([]int64, len(v.values))
	v.ctx.aimAll(v.values)
	for n := 0; n < idle && !v.ctx.effort.done(); n++ {
		v.ctx.effort.spend(ruinCost + int64(len(v.ctx.problem.shapes)*(len(v.ctx.problem.offers)+refillMost)/200))
		before := v.cost(v.best)
		if next := v.ruin(before); next != nil {
			if v.cost(next).less(before) {
				n = 0
			}
			v.best = next
		}
	}
}

// ruin makes one attempt, and returns what came of it unless that is dearer.
func (v *settler) ruin(before cost) *housing {
	for k, x := range v.values {
		v.noisy[k] = x/64*int64(48+v.seq.below(33)) + 1
	}
	s := v.best.clone()
	limits := slices.Clone(v.limits)
	emptied := map[int]bool{}
	if v.seq.below(3) == 0 {
		if !v.recall(s, limits, emptied) {
			return nil
		}
	}
	for range 1 + v.seq.below(3) {
		v.dissolve(s, limits)
	}
	for range 1 + v.seq.below(4) {
		if i := v.seq.below(len(s.stays)); s.stays[i] && v.homes[i].node >= 0 {
			v.vacate(s, i)
			emptied[i] = true
		}
	}
	v.refill(s, emptied)
	v.spread(s)
	so := v.cost(s)
	allowed := cost{left: before.left, price: before.price - so.price, machines: 1 << 40}
	if allowed.price < worth(v.values, s.left)/valueScale {
		// No machines for them cost less than they are worth.
		return nil
	}
	t := newRebuy(v.ctx, v.noisy, limits, rebuySteps, allowed)
	if !t.run(s.left) {
		return nil
	}
	for _, x := range t.kept {
		limits[v.ctx.problem.offers[x.offer].pool].launch(v.ctx.problem.offers[x.offer].uses)
	}
	s.machines, s.left = append(s.machines, t.kept...), t.left
	if after := v.cost(s); before.less(after) || !v.within(limits, s) {
		return nil
	}
	v.limits = limits
	return s
}

// within reports whether what is launched breaks no limit.
func (v *settler) within(limits []usage, s *housing) bool {
	if !v.ctx.problem.limited {
		return true
	}
	for _, m := range s.machines {
		for _, x := range limits[v.ctx.problem.offers[m.offer].pool] {
			if x < 0 {
				return false
			}
		}
	}
	return true
}

// dissolve has one machine leave, or not be launched: the dearest of three for what it holds.
func (v *settler) dissolve(s *housing, limits []usage) {
	best, waste := -1, int64(0)
	for range 3 {
		// Places up to len(s.stays) are homes, those after it launches.
		i := v.seq.below(len(s.stays) + len(s.machines))
		var w int64
		if i < len(s.stays) {
			x := &v.homes[i]
			if !s.stays[i] || x.fixed {
				continue
			}
			w = x.keeps()*valueScale - worth(v.values, x.load) - worth(v.values, s.more[i])
		} else {
			m := &s.machines[i-len(s.stays)]
			w = v.ctx.problem.offers[m.offer].price*valueScale - worth(v.values, m.load)
		}
		if best < 0 || w > waste {
			best, waste = i, w
		}
	}
	switch {
	case best < 0:
	case best < len(s.stays):
		x := &v.homes[best]
		v.vacate(s, best)
		s.left.add(x.load, 1)
		s.stays[best] = false
		limits[x.pool].giveBack(x.uses)
	default:
		v.cancel(s, best-len(s.stays), limits)
	}
}

// vacate has all pods wait that a machine took beside its own.
func (v *settler) vacate(s *housing, i int) {
	if !s.more[i].empty() {
		s.left.add(s.more[i], 1)
		s.more[i] = make(load, len(v.ctx.problem.shapes))
	}
}

// refill puts the pods of most worth where rooms were emptied.
func (v *settler) refill(s *housing, emptied map[int]bool) {
	for i := range s.stays {
		if emptied[i] && s.stays[i] && !s.left.empty() {
			k := v.ctx.noded[v.homes[i].node]
			k.price(v.noisy, s.left)
			if value, _ := k.search(s.left, 40, 0); value > 0 {
				s.more[i] = slices.Clone(k.best)
				s.left.add(k.best, -1)
			}
		}
	}
}

// cancel takes a launch back.
func (v *settler) cancel(s *housing, i int, limits []usage) {
	m := s.machines[i]
	s.left.add(m.load, 1)
	s.machines = slices.Delete(s.machines, i, i+1)
	limits[v.ctx.problem.offers[m.offer].pool].giveBack(v.ctx.problem.offers[m.offer].uses)
}

// recall has a machine stay that leaves, with as many pods as its own, taken from launches and from rooms.
func (v *settler) recall(s *housing, limits []usage, emptied map[int]bool) bool {
	best, loss := -1, int64(0)
	for range 3 {
		i := v.seq.below(len(s.stays))
		if s.stays[i] {
			continue
		}
		x := &v.homes[i]
		if l := x.keeps()*valueScale - worth(v.values, x.load); best < 0 || l < loss {
			best, loss = i, l
		}
	}
	if best < 0 {
		return false
	}
	x := &v.homes[best]
	for k, n := range x.load {
		for s.left[k] < n {
			if !v.release(s, k, limits, emptied) {
				return false
			}
		}
	}
	s.left.add(x.load, -1)
	s.stays[best] = true
	limits[x.pool].launch(x.uses)
	if x.node >= 0 {
		emptied[best] = true
	}
	return true
}

// release takes a launch or a room back that holds a pod of a shape. Launches and rooms take turns by where the walk begins.
func (v *settler) release(s *housing, shape int, limits []usage, emptied map[int]bool) bool {
	n := len(s.machines) + len(s.more)
	start := v.seq.below(n)
	for j := range n {
		i := (start + j) % n
		if i < len(s.machines) && s.machines[i].load[shape] > 0 {
			v.cancel(s, i, limits)
			return true
		}
		if i -= len(s.machines); i >= 0 && s.more[i][shape] > 0 {
			v.vacate(s, i)
			emptied[i] = true
			return true
		}
	}
	return false
}

// spread puts waiting pods where those that stay and those that are launched have room.
func (v *settler) spread(s *housing) {
	n := len(s.stays) + len(s.machines)
	start := v.seq.below(n)
	for j := range min(n, 2*refillMost) {
		if s.left.empty() {
			return
		}
		i := (start + j) % n
		if i >= len(s.stays) {
			m := &s.machines[i-len(s.stays)]
			if l := v.ctx.topUp(&v.ctx.problem.offers[m.offer].capacity, m.load, s.left); l != nil {
				m.load = l
			}
		} else if x := &v.homes[i]; s.stays[i] && x.node >= 0 {
			if l := v.ctx.topUp(&v.ctx.problem.nodes[x.node].capacity, s.more[i], s.left); l != nil {
				s.more[i] = l
			}
		}
	}
}
