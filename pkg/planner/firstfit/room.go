package firstfit

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// option is something that a machine of [Plan] can be.
type option struct {
	// index is the index of the offering or of the node.
	index  int
	node   bool
	free   amount.Vector
	quotas []planner.Amount
	// layout is an index into the layouts of GPUs, or -1 if the GPUs are unknown.
	layout int
}

// layout returns the index of the layout of some GPUs. Machines with the same GPUs share a layout, and the packing on it.
func (f *packer) layout(gpus []planner.GPU) int {
	if len(gpus) == 0 || slices.ContainsFunc(gpus, func(g planner.GPU) bool { return g.Replicas < 0 || g.MemoryBytes < 0 }) {
		return -1
	}
	for i, l := range f.layouts {
		if slices.Equal(l, gpus) {
			return i
		}
	}
	f.layouts = append(f.layouts, gpus)
	return len(f.layouts) - 1
}

// filling is the load of a machine and the options that remain for it. It is immutable, so identical machines share one.
type filling struct {
	options []int32
	// used is the total request of the pods, and quotas is their use of each quota.
	used   amount.Vector
	quotas []int64
	// most is the maximum that any option has left. A pod that requests more fits none of them.
	most amount.Vector
	// gpus is, by layout, what the pods that request device memory leave of each GPU. An entry is nil if they use nothing.
	gpus [][]planner.GPU
	// sides is, by rule of apart, which sides of it have pods on the machine.
	sides []side
	parts *part
	// asked is the batch that room applies to, counted from 1.
	asked int
	room  int32
}

// part is some pods of a batch. They come after the pods of the parts before it.
type part struct {
	before *part
	batch  int
	pods   int32
}

func (p *part) inOrder() []part {
	var out []part
	for ; p != nil; p = p.before {
		out = append(out, *p)
	}
	slices.Reverse(out)
	return out
}

// side is the relation of a class's pods to an Apart rule.
type side uint8

const (
	demands side = 1 << iota
	counted
)

// siding is the relation of a class's pods to one of the rules of apart.
type siding struct {
	rule int
	side side
}

// sidings returns, by class, the relations of its pods to the rules that concern it.
func sidings(apart []planner.Rule, classes int) [][]siding {
	out := make([][]siding, classes)
	note := func(class, rule int, is side) {
		if n := len(out[class]); n > 0 && out[class][n-1].rule == rule {
			out[class][n-1].side |= is
			return
		}
		out[class] = append(out[class], siding{rule, is})
	}
	for r, rule := range apart {
		for _, c := range rule.Classes {
			note(c, r, demands)
		}
		for _, c := range rule.Counted {
			note(c, r, counted)
		}
	}
	return out
}

// empty returns a machine without pods.
func (f *packer) empty(options []int32) *filling {
	x := &filling{
		options: options, quotas: make([]int64, len(f.snapshot.Quotas)),
		sides: make([]side, len(f.apart)), gpus: make([][]planner.GPU, len(f.layouts)),
	}
	f.measure(x)
	return x
}

// measure sets the maximum that any option has left.
func (f *packer) measure(x *filling) {
	for _, o := range x.options {
		for d, free := range f.options[o].free {
			x.most[d] = max(x.most[d], free-x.used[d])
		}
	}
}

// placing holds the state while one batch is placed.
type placing struct {
	firstFit *packer
	batch    int
	class    planner.Class
	// request is what one pod requests.
	request amount.Vector
	// admitted reports, by option, whether it admits the pods.
	admitted []bool
	// sides has the relations of the pods to the rules of apart that concern them.
	sides []siding
	// freshly caches the options of a new machine, by pool without limits. done caches the fillings that result from each step.
	freshly map[int]*filling
	done    map[step]*filling
}

// step is some pods of the batch that are put on a filling.
type step struct {
	on   *filling
	pods int32
}

func (f *packer) placing(i int) *placing {
	b := f.batches[i]
	p := &placing{
		firstFit: f, batch: i, class: f.snapshot.Classes[b.class], request: b.request,
		admitted: make([]bool, len(f.options)), sides: f.sidings[b.class],
		freshly: map[int]*filling{}, done: map[step]*filling{},
	}
	offerings, nodes := marked(p.class.Offerings, len(f.snapshot.Offerings)), marked(p.class.Nodes, len(f.snapshot.Nodes))
	for k, o := range f.options {
		p.admitted[k] = !o.node && offerings[o.index] || o.node && nodes[o.index]
	}
	return p
}

// marked reports, for each of n indices, whether it is in the list.
func marked(indices []int, n int) []bool {
	in := make([]bool, n)
	for _, i := range indices {
		if i >= 0 && i < n {
			in[i] = true
		}
	}
	return in
}

// room returns how many pods of the batch still fit on a filling, if it becomes the option with the most room.
func (p *placing) room(x *filling) int32 {
	if x.asked == p.batch+1 {
		return x.room
	}
	x.asked, x.room = p.batch+1, 0
	if most := p.lets(x); most > 0 && x.most.Fit(p.request, 1) > 0 {
		for _, o := range x.options {
			if p.admitted[o] {
				x.room = max(x.room, p.fit(x, o, most))
			}
		}
	}
	return x.room
}

// lets returns how many pods of the batch the Apart rules allow on a filling.
func (p *placing) lets(x *filling) int32 {
	most := int32(math.MaxInt32)
	for _, s := range p.sides {
		mine := s.side
		switch there := x.sides[s.rule]; {
		case mine&demands != 0 && there&counted != 0, mine&counted != 0 && there&demands != 0:
			return 0
		case mine == demands|counted:
			most = 1
		}
	}
	return most
}

// fit returns how many pods of the batch fit on a filling if it becomes the given option, up to most.
func (p *placing) fit(x *filling, o int32, most int32) int32 {
	can := &p.firstFit.options[o]
	var left amount.Vector
	for d := range left {
		left[d] = can.free[d] - x.used[d]
	}
	n := left.Fit(p.request, most)
	for _, a := range p.class.Quotas {
		if n == 0 || a.Count == 0 {
			continue
		}
		if has := p.firstFit.snapshot.QuotaOf(can.quotas, a.Quota); has != planner.Unlimited {
			n = int32(min(int64(n), max(0, has-x.quotas[a.Quota])/a.Count))
		}
	}
	if n == 0 || p.class.GPUMemoryBytes == 0 {
		return n
	}
	var onGPUs int64
	for _, g := range p.firstFit.gpusOf(x, can.layout) {
		onGPUs += min(int64(n), fitsOn(g, p.class))
	}
	return int32(min(int64(n), onGPUs))
}

// gpusOf returns what a filling leaves of each GPU of a layout.
func (f *packer) gpusOf(x *filling, layout int) []planner.GPU {
	switch {
	case layout < 0:
		return nil
	case x.gpus[layout] != nil:
		return x.gpus[layout]
	}
	return f.layouts[layout]
}

// fitsOn returns how many pods of a class that requests device memory fit on one GPU.
func fitsOn(g planner.GPU, c planner.Class) int64 {
	n := g.MemoryBytes / c.GPUMemoryBytes
	if c.Requests.Replicas > 0 {
		n = min(n, g.Replicas/c.Requests.Replicas)
	}
	return n
}

// fill puts pods of a class that requests device memory onto GPUs, each onto the GPU with the least memory left that holds it. It calls each with the
// number of pods for each GPU.
func fill(gpus []planner.GPU, c planner.Class, pods int32, each func(gpu int, pods int32)) {
	for pods > 0 {
		best := -1
		for i, g := range gpus {
			if fitsOn(g, c) > 0 && (best < 0 || g.MemoryBytes < gpus[best].MemoryBytes ||
				g.MemoryBytes == gpus[best].MemoryBytes && g.Replicas < gpus[best].Replicas) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		n := int32(min(int64(pods), fitsOn(gpus[best], c)))
		gpus[best].MemoryBytes -= int64(n) * c.GPUMemoryBytes
		gpus[best].Replicas -= int64(n) * c.Requests.Replicas
		pods -= n
		each(best, n)
	}
}

// putAll puts pods onto the machines to which they were dealt.
func (p *placing) putAll(takers []*order) {
	for _, o := range takers {
		if o.take > 0 {
			p.put(o, o.take)
		}
		o.room, o.take = 0, 0
	}
}

// put puts pods of the batch onto a machine that has room for them. Only the options that hold them remain.
func (p *placing) put(x *order, pods int32) {
	key := step{x.filling, pods}
	if then, ok := p.done[key]; ok {
		x.filling = then
		return
	}
	var options []int32
	for _, o := range x.filling.options {
		if p.admitted[o] && p.fit(x.filling, o, pods) == pods {
			options = append(options, o)
		}
	}
	p.settle(x, options, pods)
	p.done[key] = x.filling
}

// settle puts pods of the batch onto a machine and reduces its options to the given ones.
func (p *placing) settle(x *order, options []int32, pods int32) {
	was := x.filling
	now := &filling{
		options: options, used: was.used, quotas: was.quotas, gpus: slices.Clone(was.gpus), sides: slices.Clone(was.sides),
		parts: &part{was.parts, p.batch, pods},
	}
	for d, r := range p.request {
		now.used[d] += r * int64(pods)
	}
	if len(p.class.Quotas) > 0 {
		now.quotas = slices.Clone(was.quotas)
		for _, a := range p.class.Quotas {
			now.quotas[a.Quota] += a.Count * int64(pods)
		}
	}
	if p.class.GPUMemoryBytes > 0 {
		p.putOnGPUs(was, now, pods)
	}
	for _, s := range p.sides {
		now.sides[s.rule] |= s.side
	}
	p.firstFit.measure(now)
	x.filling = now
}

// putOnGPUs packs pods that request device memory onto the GPUs of each layout that the machine can still have.
func (p *placing) putOnGPUs(was, now *filling, pods int32) {
	packed := make([]bool, len(p.firstFit.layouts))
	for _, o := range now.options {
		if l := p.firstFit.options[o].layout; !packed[l] {
			packed[l] = true
			gpus := slices.Clone(p.firstFit.gpusOf(was, l))
			fill(gpus, p.class, pods, func(int, int32) {})
			now.gpus[l] = gpus
		}
	}
}

// fresh returns an empty machine that can be any of the given options that hold a pod of the batch. It returns nil if none does.
func (p *placing) fresh(pool int, within []int32) *filling {
	unlimited := !p.firstFit.limited(pool)
	if x, ok := p.freshly[pool]; ok && unlimited {
		return x
	}
	none := p.firstFit.empty(nil)
	var holding []int32
	if most := p.lets(none); most > 0 {
		for _, o := range within {
			if p.admitted[o] && p.fit(none, o, 1) > 0 {
				holding = append(holding, o)
			}
		}
	}
	var x *filling
	if len(holding) > 0 {
		x = p.firstFit.empty(holding)
	}
	if unlimited {
		p.freshly[pool] = x
	}
	return x
}
