package search

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on the improvement, in steps.
const (
	// maxIdle is the number of ruins without a success after which a round ends.
	maxIdle = 1500
	// RefillMost is how many machines a ruin looks at for room.
	RefillMost = 40
	// RebuySteps is the number of partial plans that one rebuy looks at, rebuyWidth the machines tried next in each.
	RebuySteps = 10
	rebuyWidth = 3
	// ruinCost is what a ruin counts beside its searches and its walks over all shapes, in steps.
	ruinCost = 40
)

// Sequence is a fixed series of choices, the same for every plan: variety, not chance.
type Sequence uint64

// Below returns the next choice among n.
func (q *Sequence) Below(n int) int {
	*q += 0x9e3779b97f4a7c15
	z := uint64(*q)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) >> 1 % uint64(n))
}

// Perturb sets noisy to values that are up to a quarter less or more, and at least 1.
func (q *Sequence) Perturb(noisy, values []int64) {
	for k, v := range values {
		noisy[k] = v/64*int64(48+q.Below(33)) + 1
	}
}

// RuinCost is what a ruin of a problem counts beside its searches, in steps.
func RuinCost(p *pack.Problem) int64 {
	return ruinCost + int64(len(p.Shapes)*(len(p.Offers)+RefillMost)/200)
}

// ruinAndRecreate takes a few machines apart again and again, the wasteful ones first, puts their pods where others have room,
// buys for the rest anew, and keeps what is no dearer.
func (h *primal) ruinAndRecreate(slice int64) {
	if h.neighbourhood == nil {
		h.neighbourhood = &neighbourhood{ctx: h.state.ctx}
	}
	r := h.neighbourhood
	r.s, r.values, r.limits = h.state.best, h.state.values(), h.state.best.limits(h.state.ctx.Problem)
	r.noisy = make([]int64, len(r.values))
	h.state.ctx.AimAll(r.values)
	idle := 0
	for until := h.state.ctx.Effort.Left - slice; idle < maxIdle && h.state.ctx.Effort.Left > until && !h.state.ctx.Effort.Done(); {
		if len(r.s.Machines) == 0 && (r.s.Left.Empty() || len(r.s.onNodes) == 0) || h.state.closed() {
			break
		}
		h.state.ctx.Effort.Spend(RuinCost(h.state.ctx.Problem))
		idle++
		if r.destroyAndRepair() {
			idle = 0
		}
	}
}

// neighbourhood is the state of the improvement.
type neighbourhood struct {
	ctx    *Context
	s      *Solution
	values []int64
	noisy  []int64
	limits []amount.Usage
	seq    Sequence
}

// waste is what a machine costs beyond what its load is worth.
func (r *neighbourhood) waste(i int) int64 {
	x := &r.s.Machines[i]
	return r.ctx.Problem.Offers[x.Offer].Price*pricing.Scale - pack.Worth(r.values, x.Load)
}

// pick chooses up to four machines to take apart, each the most wasteful of three.
func (r *neighbourhood) pick() []int {
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

// destroyAndRepair makes one attempt and reports whether the plan got better; one that is as good is kept too, which leads elsewhere.
func (r *neighbourhood) destroyAndRepair() bool {
	before := r.s.cost(r.ctx.Problem)
	picked := r.pick()
	waiting := slices.Clone(r.s.Left)
	old := pack.Cost{Left: r.s.Left.Total()}
	for _, i := range picked {
		x := &r.s.Machines[i]
		waiting.Add(x.Load, 1)
		o := &r.ctx.Problem.Offers[x.Offer]
		r.limits[o.Pool].GiveBack(o.Uses)
		old.Price += o.Price
		old.Machines++
	}
	undo := func() bool {
		for _, i := range picked {
			o := &r.ctx.Problem.Offers[r.s.Machines[i].Offer]
			r.limits[o.Pool].Launch(o.Uses)
		}
		return false
	}
	r.seq.Perturb(r.noisy, r.values)
	nodes := r.refillNodes(waiting)
	machines := r.refill(picked, waiting)
	t := NewRepair(r.ctx, r.noisy, r.limits, RebuySteps, old)
	if !t.Run(waiting) {
		return undo()
	}
	for i, l := range nodes {
		r.s.onNodes[i] = l
	}
	for i, l := range machines {
		r.s.Machines[i].Load = l
	}
	slices.SortFunc(picked, func(a, b int) int { return cmp.Compare(b, a) })
	for _, i := range picked {
		r.s.Machines = slices.Delete(r.s.Machines, i, i+1)
	}
	for _, x := range t.Kept {
		r.s.Machines = append(r.s.Machines, x)
		o := &r.ctx.Problem.Offers[x.Offer]
		r.limits[o.Pool].Launch(o.Uses)
	}
	r.s.Left = t.Left
	return r.s.cost(r.ctx.Problem).Less(before)
}

// refillNodes empties a few nodes and fills them anew from what waits and what they held.
func (r *neighbourhood) refillNodes(waiting pack.Load) map[int]pack.Load {
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
		k := r.ctx.NodeKnapsacks[i]
		k.Price(r.noisy, waiting)
		k.Search(waiting, 40, 0)
		out[i] = slices.Clone(k.Best)
		waiting.Add(k.Best, -1)
	}
	start := r.seq.Below(len(r.ctx.NodeKnapsacks))
	for j := range min(len(r.ctx.NodeKnapsacks), RefillMost) {
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

// refill puts waiting pods where the machines that stay have room, and returns the new loads.
func (r *neighbourhood) refill(picked []int, waiting pack.Load) map[int]pack.Load {
	out := map[int]pack.Load{}
	n := len(r.s.Machines)
	if n == 0 {
		return out
	}
	start := r.seq.Below(n)
	for j := range min(n, RefillMost) {
		i := (start + j) % n
		if slices.Contains(picked, i) {
			continue
		}
		o := &r.ctx.Problem.Offers[r.s.Machines[i].Offer]
		if l := r.ctx.TopUp(&o.Capacity, r.s.Machines[i].Load, waiting); l != nil {
			out[i] = l
		}
	}
	return out
}

// TopUp adds waiting pods to a load, and returns the new load, or nil where nothing fits.
func (m *Context) TopUp(c *pack.Capacity, l, waiting pack.Load) pack.Load {
	var out pack.Load
	if !m.room.Fill(m.Problem, c, l) {
		return nil
	}
	for k, n := range waiting {
		if n == 0 || c.Fits[k] == 0 {
			continue
		}
		if more := m.room.Add(m.Problem, c, k, n); more > 0 {
			if out == nil {
				out = slices.Clone(l)
			}
			out[k] += more
			waiting[k] -= more
		}
	}
	// What went in one by one has GPUs, but a plan looks for them anew and has to find them again.
	if out != nil && c.Binned && !m.room.Fill(m.Problem, c, out) {
		waiting.Add(out, 1)
		waiting.Add(l, -1)
		return nil
	}
	return out
}
