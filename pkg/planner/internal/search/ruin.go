package search

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on ruin and recreate, in steps.
const (
	// maxIdle is the number of ruins without improvement after which a round ends.
	maxIdle = 1500
	// MaxRefill is the number of machines that a ruin examines for room.
	MaxRefill = 40
	// ruinCost is the cost of a ruin without its searches and its loops over all shapes. fillSteps is the maximum cost of filling a node.
	ruinCost, fillSteps = 40, 40
)

// Sequence is a pseudorandom sequence of choices with a fixed seed, which is the same for every plan.
type Sequence uint64

// Below returns the next choice among n.
func (q *Sequence) Below(n int) int {
	*q += 0x9e3779b97f4a7c15
	z := uint64(*q)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) >> 1 % uint64(n))
}

// Perturb sets noisy to values that differ by at most a quarter, and are at least 1.
func (q *Sequence) Perturb(noisy, values []int64) {
	for k, v := range values {
		noisy[k] = v/64*int64(48+q.Below(33)) + 1
	}
}

// RuinAndRecreate repeatedly ruins a plan and recreates it. An attempt removes a few machines of the best plan, puts their pods into free room, launches machines
// for the rest ([Repair]), and keeps the result if it costs no more. It reports whether the result costs less. The method ends after idle attempts in a row
// without improvement, once until returns true, or when the effort is spent. The knapsacks must be aimed ([Context.AimAll]).
func (m *Context) RuinAndRecreate(idle int, until, attempt func() bool) {
	cost := ruinCost + int64(len(m.Problem.Shapes)*(len(m.Problem.Offers)+MaxRefill)/200)
	for n := 0; n < idle && !m.Effort.Done() && !until(); {
		m.Effort.Spend(cost)
		n++
		if attempt() {
			n = 0
		}
	}
}

// ruinAndRecreate improves the best plan with a slice of the effort. The machines removed first are the most wasteful ones.
func (h *primal) ruinAndRecreate(slice int64) {
	if h.neighborhood == nil {
		h.neighborhood = &neighborhood{ctx: h.state.ctx}
	}
	e := h.state.ctx.Effort
	end := e.Left - slice
	h.state.ctx.AimAll(h.state.values())
	h.neighborhood.improve(h.state.best, h.state.values(), func() bool { return e.Left <= end || h.state.closed() })
}

// improve improves a solution until [maxIdle] attempts in a row were in vain, or until returns true. The values are those that attempts perturb.
func (r *neighborhood) improve(s *Solution, values []int64, until func() bool) {
	r.s, r.values, r.limits, r.noisy = s, values, s.limits(r.ctx.Problem), make([]int64, len(values))
	r.room = r.room[:0]
	for i := range s.Machines {
		r.room = append(r.room, r.ctx.left(&s.Machines[i]))
	}
	r.ctx.RuinAndRecreate(maxIdle, func() bool {
		return until() || len(r.s.Machines) == 0 && (r.s.Left.Empty() || len(r.s.onNodes) == 0)
	}, r.destroyAndRepair)
}

// left returns what the load of a machine leaves of its resources.
func (m *Context) left(x *Machine) amount.Vector {
	free := m.Problem.Offers[x.Offer].Free
	for k, n := range x.Load {
		if n > 0 {
			free.Take(m.Problem.Shapes[k].Request, n)
		}
	}
	return free
}

// waste returns how much the price of a machine exceeds the worth of its load.
func (r *neighborhood) waste(i int) int64 {
	x := &r.s.Machines[i]
	return r.ctx.cost(x.Offer)*pricing.Scale - pack.Worth(r.values, x.Load)
}

// pick chooses up to four machines to remove, each the most wasteful of three.
func (r *neighborhood) pick() []int {
	n := len(r.s.Machines)
	var picked []int
	for range min(n, 1+r.seq.Below(4)) {
		best := r.seq.Below(n)
		for range 2 {
			if x := r.seq.Below(n); r.waste(x) > r.waste(best) {
				best = x
			}
		}
		for slices.Contains(picked, best) {
			best = (best + 1) % n
		}
		picked = append(picked, best)
	}
	return picked
}

// destroyAndRepair makes one attempt and reports whether the plan is better. It also keeps a plan that is as good, which leads to other plans.
func (r *neighborhood) destroyAndRepair() bool {
	before := r.s.cost(r.ctx.Problem)
	picked := r.pick()
	waiting := slices.Clone(r.s.Left)
	old := pack.Cost{Left: r.s.Left.Total()}
	for _, i := range picked {
		x := &r.s.Machines[i]
		waiting.Add(x.Load, 1)
		o := &r.ctx.Problem.Offers[x.Offer]
		r.limits.GiveBack(&o.Charge)
		old.Price += o.Price
		old.Machines++
	}
	undo := func() bool {
		for _, i := range picked {
			o := &r.ctx.Problem.Offers[r.s.Machines[i].Offer]
			r.limits.Launch(&o.Charge)
		}
		return false
	}
	r.seq.Perturb(r.noisy, r.values)
	nodes := r.refillNodes(waiting)
	machines := r.refill(picked, waiting)
	if r.ctx.linear != nil && old.Left == 0 && old.Price+supply(r.limits, r.ctx.linearStocks) < pack.Worth(r.ctx.linear, waiting)/pricing.Scale {
		// No machines for these pods cost less than the worth of the pods, except for what is left of the stocks.
		return undo()
	}
	t := NewRepair(r.ctx, r.noisy, r.limits, RebuySteps, old)
	t.least = r.ctx.linear
	if !t.Run(waiting) {
		return undo()
	}
	for i, l := range nodes {
		r.s.onNodes[i] = l
	}
	for i, l := range machines {
		r.s.Machines[i].Load = l
		r.room[i] = r.ctx.left(&r.s.Machines[i])
	}
	slices.SortFunc(picked, func(a, b int) int { return cmp.Compare(b, a) })
	for _, i := range picked {
		r.s.Machines, r.room = slices.Delete(r.s.Machines, i, i+1), slices.Delete(r.room, i, i+1)
	}
	for _, x := range t.Kept {
		r.s.Machines, r.room = append(r.s.Machines, x), append(r.room, r.ctx.left(&x))
		o := &r.ctx.Problem.Offers[x.Offer]
		r.limits.Launch(&o.Charge)
	}
	r.s.Left = t.Left
	return r.s.cost(r.ctx.Problem).Less(before)
}

// refillNodes empties a few nodes and fills them again from the waiting pods and those that the nodes held.
func (r *neighborhood) refillNodes(waiting pack.Load) map[int]pack.Load {
	out := map[int]pack.Load{}
	if len(r.ctx.NodeKnapsacks) == 0 {
		return out
	}
	var emptied []int
	for range min(len(r.ctx.NodeKnapsacks), 1+r.seq.Below(4)) {
		if i := r.seq.Below(len(r.ctx.NodeKnapsacks)); !slices.Contains(emptied, i) {
			emptied = append(emptied, i)
			waiting.Add(r.s.onNodes[i], 1)
		}
	}
	for _, i := range emptied {
		out[i] = r.ctx.FillNode(i, r.noisy, waiting)
	}
	start := r.seq.Below(len(r.ctx.NodeKnapsacks))
	for j := range min(len(r.ctx.NodeKnapsacks), MaxRefill) {
		i := (start + j) % len(r.ctx.NodeKnapsacks)
		l := out[i]
		if l == nil {
			l = r.s.onNodes[i]
		}
		if more := r.ctx.TopUp(&r.ctx.Problem.Nodes[i].Capacity, l, waiting); more != nil {
			out[i] = more
		}
	}
	return out
}

// refill puts waiting pods on the remaining machines that have room, and returns the new loads.
func (r *neighborhood) refill(picked []int, waiting pack.Load) map[int]pack.Load {
	out := map[int]pack.Load{}
	n := len(r.s.Machines)
	if n == 0 {
		return out
	}
	r.some = r.some[:0]
	for k, n := range waiting {
		if n > 0 {
			r.some = append(r.some, k)
		}
	}
	start := r.seq.Below(n)
	for j := range min(n, MaxRefill) {
		i := (start + j) % n
		if slices.Contains(picked, i) || !r.mayTakeMore(i) {
			continue
		}
		o := &r.ctx.Problem.Offers[r.s.Machines[i].Offer]
		if l := r.ctx.TopUp(&o.Capacity, r.s.Machines[i].Load, waiting); l != nil {
			out[i] = l
		}
	}
	return out
}

// mayTakeMore reports whether a machine has the resources for a pod that waits.
func (r *neighborhood) mayTakeMore(i int) bool {
	fits, free := r.ctx.Problem.Offers[r.s.Machines[i].Offer].Fits, &r.room[i]
	return slices.ContainsFunc(r.some, func(k int) bool {
		if fits[k] == 0 {
			return false
		}
		for d, x := range &r.ctx.Problem.Shapes[k].Request {
			if x > free[d] {
				return false
			}
		}
		return true
	})
}
