package consolidate

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
	"karve.sh/karve/pkg/planner/internal/search"
)

// ruinAndRecreate improves the best solution. Besides launched machines, it also removes running ones, returns leaving machines, and refills nodes.
func (v *improver) ruinAndRecreate(idle int) {
	v.noisy = make([]int64, len(v.values))
	v.ctx.AimAll(v.values)
	v.ctx.RuinAndRecreate(idle, func() bool { return false }, func() bool {
		before := v.cost(v.best)
		next := v.destroyAndRepair(before)
		if next == nil {
			return false
		}
		v.best = next
		return v.cost(next).Less(before)
	})
}

// destroyAndRepair makes one attempt. It returns the result, or nil if it costs more or none is found.
func (v *improver) destroyAndRepair(before pack.Cost) *solution {
	v.seq.Perturb(v.noisy, v.values)
	s := v.best.clone()
	limits := v.limits.Clone()
	emptied := map[int]bool{}
	if v.seq.Below(3) == 0 {
		if !v.keepLeaving(s, limits, emptied) {
			return nil
		}
	}
	for range 1 + v.seq.Below(3) {
		v.remove(s, limits)
	}
	for range 1 + v.seq.Below(4) {
		if i := v.seq.Below(len(s.stays)); s.stays[i] && v.existing[i].node >= 0 {
			v.empty(s, i)
			emptied[i] = true
		}
	}
	v.refill(s, emptied)
	v.placeRest(s)
	so := v.cost(s)
	allowed := pack.Cost{Left: before.Left, Price: before.Price - so.Price, Machines: 1 << 40}
	if !v.ctx.Problem.Stocked && allowed.Price < pack.Worth(v.values, s.left)/pricing.Scale {
		// No machines for these pods cost less than the worth of the pods.
		return nil
	}
	t := search.NewRepair(v.ctx, v.noisy, limits, search.RebuySteps, allowed)
	if !t.Run(s.left) {
		return nil
	}
	for _, x := range t.Kept {
		limits.Launch(&v.ctx.Problem.Offers[x.Offer].Charge)
	}
	s.machines, s.left = append(s.machines, t.Kept...), t.Left
	if after := v.cost(s); before.Less(after) || !v.within(limits, s) {
		return nil
	}
	v.limits = limits
	return s
}

func (v *improver) within(limits pack.Limits, s *solution) bool {
	return !v.ctx.Problem.Limited && !v.ctx.Problem.Stocked ||
		!slices.ContainsFunc(s.machines, func(m search.Machine) bool { return limits.Exceeded(&v.ctx.Problem.Offers[m.Offer].Charge) })
}

// remove lets one machine leave, or cancels its launch. Of three random ones, it chooses the one whose price exceeds the worth of its load by
// most.
func (v *improver) remove(s *solution, limits pack.Limits) {
	best, waste := -1, int64(0)
	for range 3 {
		// Indices up to len(s.stays) are existing machines, those after it launches.
		i := v.seq.Below(len(s.stays) + len(s.machines))
		var w int64
		if i < len(s.stays) {
			x := &v.existing[i]
			if !s.stays[i] || x.fixed {
				continue
			}
			w = x.keeps()*pricing.Scale - pack.Worth(v.values, x.load) - pack.Worth(v.values, s.more[i])
		} else {
			m := &s.machines[i-len(s.stays)]
			w = v.ctx.Problem.Offers[m.Offer].Price*pricing.Scale - pack.Worth(v.values, m.Load)
		}
		if best < 0 || w > waste {
			best, waste = i, w
		}
	}
	switch {
	case best < 0:
	case best < len(s.stays):
		x := &v.existing[best]
		v.empty(s, best)
		s.left.Add(x.load, 1)
		s.stays[best] = false
		limits.GiveBack(x.charge)
	default:
		v.cancel(s, best-len(s.stays), limits)
	}
}

// empty removes the pods that a machine took in addition to its own.
func (v *improver) empty(s *solution, i int) {
	if !s.more[i].Empty() {
		s.left.Add(s.more[i], 1)
		s.more[i] = make(pack.Load, len(v.ctx.Problem.Shapes))
	}
}

// refill fills emptied machines with the pods of greatest worth.
func (v *improver) refill(s *solution, emptied map[int]bool) {
	for i := range s.stays {
		if emptied[i] && s.stays[i] && !s.left.Empty() {
			s.more[i] = v.ctx.FillNode(v.existing[i].node, v.noisy, s.left)
		}
	}
}

func (v *improver) cancel(s *solution, i int, limits pack.Limits) {
	m := s.machines[i]
	s.left.Add(m.Load, 1)
	s.machines = slices.Delete(s.machines, i, i+1)
	limits.GiveBack(&v.ctx.Problem.Offers[m.Offer].Charge)
}

// keepLeaving lets a leaving machine stay, with as many pods of each shape as its own, taken from launches and from nodes. It reports whether it succeeded.
func (v *improver) keepLeaving(s *solution, limits pack.Limits, emptied map[int]bool) bool {
	best, loss := -1, int64(0)
	for range 3 {
		i := v.seq.Below(len(s.stays))
		if s.stays[i] {
			continue
		}
		x := &v.existing[i]
		if l := x.keeps()*pricing.Scale - pack.Worth(v.values, x.load); best < 0 || l < loss {
			best, loss = i, l
		}
	}
	if best < 0 {
		return false
	}
	x := &v.existing[best]
	for k, n := range x.load {
		for s.left[k] < n {
			if !v.takeBack(s, k, limits, emptied) {
				return false
			}
		}
	}
	s.left.Add(x.load, -1)
	s.stays[best] = true
	limits.Launch(x.charge)
	if x.node >= 0 {
		emptied[best] = true
	}
	return true
}

// takeBack cancels a launch or empties a node that holds a pod of a shape. It starts at a random position. It reports whether there was one.
func (v *improver) takeBack(s *solution, shape int, limits pack.Limits, emptied map[int]bool) bool {
	n := len(s.machines) + len(s.more)
	start := v.seq.Below(n)
	for j := range n {
		i := (start + j) % n
		if i < len(s.machines) && s.machines[i].Load[shape] > 0 {
			v.cancel(s, i, limits)
			return true
		}
		if i -= len(s.machines); i >= 0 && s.more[i][shape] > 0 {
			v.empty(s, i)
			emptied[i] = true
			return true
		}
	}
	return false
}

// placeRest places unplaced pods on machines that stay or are launched and have room.
func (v *improver) placeRest(s *solution) {
	n := len(s.stays) + len(s.machines)
	start := v.seq.Below(n)
	for j := range min(n, 2*search.MaxRefill) {
		if s.left.Empty() {
			return
		}
		i := (start + j) % n
		if i >= len(s.stays) {
			m := &s.machines[i-len(s.stays)]
			if l := v.ctx.TopUp(&v.ctx.Problem.Offers[m.Offer].Capacity, m.Load, s.left); l != nil {
				m.Load = l
			}
		} else if x := &v.existing[i]; s.stays[i] && x.node >= 0 {
			if l := v.ctx.TopUp(&v.ctx.Problem.Nodes[x.node].Capacity, s.more[i], s.left); l != nil {
				s.more[i] = l
			}
		}
	}
}
