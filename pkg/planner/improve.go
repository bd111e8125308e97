package planner

import (
	"cmp"
	"slices"
)

// Limits on the improvement, in steps.
const (
	// maxIdle is the number of ruins without a success after which a round ends.
	maxIdle = 1500
	// refillMost is how many machines a ruin looks at for room.
	refillMost = 40
	// rebuySteps is the number of partial plans that one rebuy looks at, rebuyWidth the machines tried next in each.
	rebuySteps = 10
	rebuyWidth = 3
	// ruinCost is what a ruin counts beside its searches and its walks over all shapes, in steps.
	ruinCost = 40
)

// sequence is a fixed series of choices, the same for every plan: variety, not chance.
type sequence uint64

// below returns the next choice among n.
func (q *sequence) below(n int) int {
	*q += 0x9e3779b97f4a7c15
	z := uint64(*q)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) >> 1 % uint64(n))
}

// improve takes a few machines apart again and again, the wasteful ones first, puts their pods where others have room,
// buys for the rest anew, and keeps what is no dearer.
func (h *hunt) improve(slice int64) {
	if h.ruin == nil {
		h.ruin = &ruiner{ctx: h.side.ctx}
	}
	r := h.ruin
	r.s, r.values, r.limits = h.side.best, h.side.values(), h.side.best.limits(h.side.ctx.problem)
	r.noisy = make([]int64, len(r.values))
	h.side.ctx.aimAll(r.values)
	if h.side.ctx.known = nil; h.side.few() && h.side.g != nil {
		h.side.ctx.known = h.side.g.columns
	}
	idle := 0
	for until := h.side.ctx.effort.left - slice; idle < maxIdle && h.side.ctx.effort.left > until && !h.side.ctx.effort.done(); {
		if len(r.s.machines) == 0 && (r.s.left.empty() || len(r.s.onNodes) == 0) || h.side.closed() {
			break
		}
		h.side.ctx.effort.spend(ruinCost + int64(len(h.side.ctx.problem.shapes)*(len(h.side.ctx.problem.offers)+refillMost)/200))
		idle++
		if r.ruin() {
			idle = 0
		}
	}
}

// ruiner is the state of the improvement.
type ruiner struct {
	ctx    *mixer
	s      *solution
	values []int64
	noisy  []int64
	limits []usage
	seq    sequence
}

// waste is what a machine costs beyond what its load is worth.
func (r *ruiner) waste(i int) int64 {
	x := &r.s.machines[i]
	return r.ctx.problem.offers[x.offer].price*valueScale - worth(r.values, x.load)
}

// pick chooses up to four machines to take apart, each the most wasteful of three.
func (r *ruiner) pick() []int {
	n := len(r.s.machines)
	var picked []int
	for range min(n, 1+r.seq.below(4)) {
		best := r.seq.below(n)
		for range 2 {
			if x := r.seq.below(n); r.waste(x) > r.waste(best) {
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

// ruin makes one attempt and reports whether the plan got better; one that is as good is kept too, which leads elsewhere.
func (r *ruiner) ruin() bool {
	before := r.s.cost(r.ctx.problem)
	picked := r.pick()
	waiting := slices.Clone(r.s.left)
	old := cost{left: r.s.left.total()}
	for _, i := range picked {
		x := &r.s.machines[i]
		waiting.add(x.load, 1)
		o := &r.ctx.problem.offers[x.offer]
		r.limits[o.pool].giveBack(o.uses)
		old.price += o.price
		old.machines++
	}
	undo := func() bool {
		for _, i := range picked {
			o := &r.ctx.problem.offers[r.s.machines[i].offer]
			r.limits[o.pool].launch(o.uses)
		}
		return false
	}
	for k, v := range r.values {
		r.noisy[k] = v/64*int64(48+r.seq.below(33)) + 1
	}
	nodes := r.refillNodes(waiting)
	machines := r.refill(picked, waiting)
	t := newRebuy(r.ctx, r.noisy, r.limits, rebuySteps, old)
	if !t.run(waiting) {
		return undo()
	}
	for i, l := range nodes {
		r.s.onNodes[i] = l
	}
	for i, l := range machines {
		r.s.machines[i].load = l
	}
	slices.SortFunc(picked, func(a, b int) int { return cmp.Compare(b, a) })
	for _, i := range picked {
		r.s.machines = slices.Delete(r.s.machines, i, i+1)
	}
	for _, x := range t.kept {
		r.s.machines = append(r.s.machines, x)
		o := &r.ctx.problem.offers[x.offer]
		r.limits[o.pool].launch(o.uses)
	}
	r.s.left = t.left
	return r.s.cost(r.ctx.problem).less(before)
}

// refillNodes empties a few nodes and fills them anew from what waits and what they held.
func (r *ruiner) refillNodes(waiting load) map[int]load {
	out := map[int]load{}
	if len(r.ctx.noded) == 0 {
		return out
	}
	var emptied []int
	for range min(len(r.ctx.noded), 1+r.seq.below(4)) {
		if i := r.seq.below(len(r.ctx.noded)); !slices.Contains(emptied, i) {
			emptied = append(emptied, i)
			waiting.add(r.s.onNodes[i], 1)
		}
	}
	for _, i := range emptied {
		k := r.ctx.noded[i]
		k.price(r.noisy, waiting)
		k.search(waiting, 40, 0)
		out[i] = slices.Clone(k.best)
		waiting.add(k.best, -1)
	}
	start := r.seq.below(len(r.ctx.noded))
	for j := range min(len(r.ctx.noded), refillMost) {
		i := (start + j) % len(r.ctx.noded)
		l := out[i]
		if l == nil {
			l = r.s.onNodes[i]
		}
		if more := r.ctx.topUp(&r.ctx.problem.nodes[i].capacity, l, waiting); more != nil {
			out[i] = more
		}
	}
	return out
}

// refill puts waiting pods where the machines that stay have room, and returns the new loads.
func (r *ruiner) refill(picked []int, waiting load) map[int]load {
	out := map[int]load{}
	n := len(r.s.machines)
	if n == 0 {
		return out
	}
	start := r.seq.below(n)
	for j := range min(n, refillMost) {
		i := (start + j) % n
		if slices.Contains(picked, i) {
			continue
		}
		o := &r.ctx.problem.offers[r.s.machines[i].offer]
		if l := r.ctx.topUp(&o.capacity, r.s.machines[i].load, waiting); l != nil {
			out[i] = l
		}
	}
	return out
}

// topUp adds waiting pods to a load, and returns the new load, or nil where nothing fits.
func (m *mixer) topUp(c *capacity, l, waiting load) load {
	var out load
	if !m.room.fill(m.problem, c, l) {
		return nil
	}
	for k, n := range waiting {
		if n == 0 || c.fits[k] == 0 {
			continue
		}
		if more := m.room.add(m.problem, c, k, n); more > 0 {
			if out == nil {
				out = slices.Clone(l)
			}
			out[k] += more
			waiting[k] -= more
		}
	}
	// What went in one by one has GPUs, but a plan looks for them anew and has to find them again.
	if out != nil && c.binned && !m.room.fill(m.problem, c, out) {
		waiting.add(out, 1)
		waiting.add(l, -1)
		return nil
	}
	return out
}
