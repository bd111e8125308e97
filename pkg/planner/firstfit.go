package planner

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
)

// firstFitSteps, pods times machines, are as many as take some tenths of a second. Until then [FirstFit] decides as Karpenter does to the last pod.
const firstFitSteps = 20_000_000

// FirstFit returns the plan that Karpenter's own scheduler makes of a snapshot, were it told what Karve knows of replicas and of the
// memory of GPUs. It is what a plan of [Build] is compared with, and what there is when nothing better was found in time.
//
// As there, pods come by CPU and then by memory, the largest first; each goes to the first node by name that has room, else to the machine on
// order with the fewest pods that some offering can still be, else to a new one, which can at first be any offering of the heaviest
// pool that has one. A pool's limit is charged with the largest machine that a new one can be. At the end each machine is the
// cheapest offering that it can still be.
//
// Rules are kept pod by pod. Wishes, priorities and minValues are not looked at. Its bound is 0.
func FirstFit(s Snapshot) Plan { return newFirstFit(s).pack() }

// fitLimits bound the work of [firstFitWithin].
type fitLimits struct {
	// sorted is for how many pods times machines the machines are sorted for every pod, as Karpenter does. Beyond that pods are dealt class by class.
	sorted int64
	// ruledPods is how many pods, of those that rules speak of, are placed one by one.
	ruledPods int
}

// firstFitWithin is [FirstFit] within limits; false where rules speak of more pods.
func firstFitWithin(s Snapshot, limits fitLimits) (Plan, bool) {
	f := newFirstFit(s)
	if f.ruledPods() > limits.ruledPods {
		return Plan{}, false
	}
	f.steps = limits.sorted
	return f.pack(), true
}

// ruledPods is how many pods a rule speaks of.
func (f *firstFit) ruledPods() int {
	pods := 0
	for _, b := range f.batches {
		if f.ruled(b.class) {
			pods += len(b.pods)
		}
	}
	return pods
}

// firstFit is a snapshot while it is packed. What fits is computed by class, never pod by pod.
type firstFit struct {
	snapshot Snapshot
	batches  []batch
	// options are the usable offerings in stable order, then the nodes by name: all that a machine can be.
	options []option
	// layouts are the GPUs that there are: options with the same GPUs share one.
	layouts [][]GPU
	// apart are the rules that keep pods apart on a machine.
	apart []Rule
	// headcounts are the other rules.
	headcounts []*headcount
	// about are, by class, those that are about it, sidings the rules of apart that are.
	about   [][]relation
	sidings [][]siding
	pools   []poolOptions
	left    []usage
	nodes   []*order
	// orders are the machines on order, in the order in which they are asked.
	orders []*order
	// steps are left before machines are no longer sorted for every pod.
	steps   int64
	refused []Unplaced
}

// batch is the pods of a class.
type batch struct {
	class    int
	pods     []string
	request  vec
	unplaced int32
}

// poolOptions are the options that a pool offers.
type poolOptions struct {
	pool    int
	options []int32
}

// order is a machine that exists, or that is to be launched as one of several offerings.
type order struct {
	filling *filling
	// machine is the index of a node, or a number of its own after those.
	machine int
	pods    int32
	// room is for how many pods of the batch at hand there is still room, take how many of them it was given.
	room, take int32
	// turn orders those with equally many pods in dealByLevel.
	turn int
}

func newFirstFit(s Snapshot) *firstFit {
	f := &firstFit{snapshot: s, steps: firstFitSteps}
	for _, p := range s.Pools {
		f.left = append(f.left, usageOf(p.Remaining))
	}
	f.headcounts = newHeadcounts(s)
	for i, r := range s.Rules {
		if r.Kind == Apart && r.Topology == PerNode {
			r.Classes = demanding(s, i)
			f.apart = append(f.apart, r)
		}
	}
	f.about, f.sidings = relations(f.headcounts, len(s.Classes)), sidings(f.apart, len(s.Classes))
	f.addBatches()
	f.addOptions()
	return f
}

// addBatches puts the classes in the order in which their pods are placed, and refuses what is blocked or malformed.
func (f *firstFit) addBatches() {
	seen := map[string]bool{}
	for _, c := range classOrder(f.snapshot) {
		class := f.snapshot.Classes[c]
		b := batch{class: c, request: vecOf(class.Requests)}
		for _, pod := range class.Pods {
			if !seen[pod] {
				seen[pod] = true
				b.pods = append(b.pods, pod)
			}
		}
		switch {
		case class.Blocked != nil:
			f.refuse(b.pods, *class.Blocked)
		case b.request.negative() || class.GPUMemoryBytes < 0 || slices.ContainsFunc(class.Quotas, func(a Amount) bool { return a.Count < 0 }):
			f.refuse(b.pods, Refusal{ReasonUnsupported, "requests less than nothing of a resource: correct its requests"})
		default:
			f.batches = append(f.batches, b)
		}
	}
	slices.SortStableFunc(f.batches, func(a, b batch) int {
		return cmp.Or(cmp.Compare(b.request[dimCPU], a.request[dimCPU]), cmp.Compare(b.request[dimMemory], a.request[dimMemory]))
	})
}

func (f *firstFit) refuse(pods []string, why Refusal) {
	for _, pod := range pods {
		f.refused = append(f.refused, Unplaced{Pod: pod, Refusal: why})
	}
}

// addOptions lists what machines can be: offerings, by pool as Karpenter orders pools, and nodes by name.
func (f *firstFit) addOptions() {
	s := f.snapshot
	byPool := make([][]int32, len(s.Pools))
	for _, i := range usableOfferings(s) {
		o := s.Offerings[i]
		byPool[o.Pool] = append(byPool[o.Pool], int32(len(f.options)))
		f.options = append(f.options, option{index: i, free: vecOf(o.Free), quotas: o.Quotas, layout: f.layout(o.GPUs)})
	}
	for pool, options := range byPool {
		f.pools = append(f.pools, poolOptions{pool, options})
	}
	slices.SortStableFunc(f.pools, func(a, b poolOptions) int {
		x, y := s.Pools[a.pool], s.Pools[b.pool]
		return cmp.Or(cmp.Compare(y.Weight, x.Weight), cmp.Compare(y.Name, x.Name))
	})
	var nodes []int
	for i, n := range s.Nodes {
		if !vecOf(n.Free).negative() {
			nodes = append(nodes, i)
		}
	}
	slices.SortStableFunc(nodes, func(i, j int) int { return cmp.Compare(s.Nodes[i].Name, s.Nodes[j].Name) })
	for _, i := range nodes {
		n := s.Nodes[i]
		f.options = append(f.options, option{index: i, node: true, free: vecOf(n.Free), quotas: n.Quotas, layout: f.layout(n.GPUs)})
	}
	for i := len(f.options) - len(nodes); i < len(f.options); i++ {
		f.nodes = append(f.nodes, &order{filling: f.empty([]int32{int32(i)}), machine: f.options[i].index})
	}
}

// pack places everything. What found no place because of where other pods are is tried again as long as that helps.
func (f *firstFit) pack() Plan {
	for i := range f.batches {
		f.place(i)
	}
	for again := len(f.headcounts) > 0; again; {
		again = false
		for i := range f.batches {
			if b := &f.batches[i]; b.unplaced > 0 && f.ruled(b.class) {
				before := b.unplaced
				b.unplaced = f.placeRuled(f.placing(i), before)
				again = again || b.unplaced < before
			}
		}
	}
	return f.plan()
}

// place finds places for the pods of a batch: nodes, then the machines on order, then new ones.
func (f *firstFit) place(i int) {
	p := f.placing(i)
	left := int32(len(f.batches[i].pods))
	if f.ruled(f.batches[i].class) {
		f.batches[i].unplaced = f.placeRuled(p, left)
		return
	}
	for _, n := range f.nodes {
		if take := min(left, p.room(n.filling)); take > 0 {
			p.put(n, take)
			n.pods, left = n.pods+take, left-take
		}
	}
	if f.steps -= int64(left) * int64(len(f.orders)+1); f.steps > 0 {
		f.batches[i].unplaced = f.deal(p, left)
	} else {
		f.batches[i].unplaced = f.dealByLevel(p, left)
	}
}

// deal deals pods one by one, each to the first machine in order with room, or to a new one, and returns how many have no place. Before each
// it sorts the machines as Karpenter does: [sort.Slice] leaves equal ones in an order of its own, and it has to be that.
func (f *firstFit) deal(p *placing, pods int32) int32 {
	var takers []*order
	for _, o := range f.orders {
		if o.room = p.room(o.filling); o.room > 0 {
			takers = append(takers, o)
		}
	}
	for ; pods > 0; pods-- {
		f.sortOrders()
		i := slices.IndexFunc(f.orders, func(o *order) bool { return o.room > 0 })
		if i < 0 {
			o := f.open(p)
			if o == nil {
				break
			}
			o.room = p.room(o.filling)
			takers, f.orders = append(takers, o), append(f.orders, o)
			i = len(f.orders) - 1
		}
		o := f.orders[i]
		o.room, o.take, o.pods = o.room-1, o.take+1, o.pods+1
	}
	p.putAll(takers)
	return pods
}

func (f *firstFit) sortOrders() {
	sort.Slice(f.orders, func(i, j int) bool { return f.orders[i].pods < f.orders[j].pods })
}

// dealByLevel is deal for many pods and machines: it goes from the machines with the fewest pods to those with more. It is what a stable sort does,
// and so the same as deal with up to twelve machines.
func (f *firstFit) dealByLevel(p *placing, pods int32) int32 {
	var takers []*order
	for i, o := range f.orders {
		o.turn = i
		if o.room = p.room(o.filling); o.room > 0 {
			takers = append(takers, o)
		}
	}
	slices.SortStableFunc(takers, func(a, b *order) int { return cmp.Compare(a.pods, b.pods) })
	turn, next := 0, 0
	take := func(o *order, n int32) {
		turn--
		o.turn, o.room, o.take, o.pods, pods = turn, o.room-n, o.take+n, o.pods+n, pods-n
	}
	var level []*order
	for at := int32(0); pods > 0 && (len(level) > 0 || next < len(takers)); at++ {
		if len(level) == 0 {
			at = takers[next].pods
		}
		for ; next < len(takers) && takers[next].pods == at; next++ {
			level = append(level, takers[next])
		}
		var above []*order
		for _, o := range level[:min(len(level), int(pods))] {
			if take(o, 1); o.room > 0 {
				above = append(above, o)
			}
		}
		// Who was given a pod comes before the others that have as many.
		slices.Reverse(above)
		level = above
	}
	for pods > 0 {
		o := f.open(p)
		if o == nil {
			break
		}
		o.room = p.room(o.filling)
		take(o, min(pods, o.room))
		if o.pods == 1 {
			o.turn = len(f.orders)
		}
		takers, f.orders = append(takers, o), append(f.orders, o)
	}
	p.putAll(takers)
	slices.SortFunc(f.orders, func(a, b *order) int { return cmp.Or(cmp.Compare(a.pods, b.pods), cmp.Compare(a.turn, b.turn)) })
	return pods
}

// open orders a new machine that can hold a pod of the batch, or returns nil.
func (f *firstFit) open(p *placing) *order {
	for _, pool := range f.pools {
		if x := f.openFrom(p, pool, func(*order) bool { return true }); x != nil {
			return x
		}
	}
	return nil
}

// openFrom is open for one pool, if what is then done with the machine goes well. The pool is charged with the largest that the machine can be.
func (f *firstFit) openFrom(p *placing, pool poolOptions, use func(*order) bool) *order {
	left := &f.left[pool.pool]
	within := pool.options
	if !left.unlimited() {
		within = slices.DeleteFunc(slices.Clone(within), func(o int32) bool { return !left.admits(f.uses(o)) })
	}
	fresh := p.fresh(pool.pool, within)
	if fresh == nil {
		return nil
	}
	x := &order{filling: fresh, machine: len(f.snapshot.Nodes) + len(f.orders)}
	if !use(x) {
		return nil
	}
	var most usage
	for _, o := range x.filling.options {
		for d, n := range f.uses(o) {
			most[d] = max(most[d], n)
		}
	}
	left.launch(most)
	return x
}

// uses is what an offering counts against its pool's limits.
func (f *firstFit) uses(o int32) usage {
	return usageOf(f.snapshot.Offerings[f.options[o].index].Physical)
}

// plan names the pods and the machines.
func (f *firstFit) plan() Plan {
	s := f.snapshot
	next := make([]int, len(f.batches))
	var plan Plan
	for _, n := range f.nodes {
		if n.pods > 0 {
			o := f.options[n.filling.options[0]]
			pods, gpus := f.pods(n.filling, o, next)
			plan.Placements = append(plan.Placements, Placement{Node: o.index, Pods: pods, GPUs: gpus})
		}
	}
	for _, x := range f.orders {
		var o option
		price := MicroUSD(math.MaxInt64)
		for _, i := range x.filling.options {
			if can := f.options[i]; s.Offerings[can.index].Price < price {
				o, price = can, s.Offerings[can.index].Price
			}
		}
		pods, gpus := f.pods(x.filling, o, next)
		plan.Launches = append(plan.Launches, Launch{Offering: o.index, Pods: pods, GPUs: gpus})
		plan.Price += price
	}
	slices.SortStableFunc(plan.Launches, func(a, b Launch) int { return compareOfferings(s, a.Offering, b.Offering) })
	plan.Unplaced = f.refused
	var reasons *problem
	for i, b := range f.batches {
		if b.unplaced > 0 {
			if reasons == nil {
				reasons = compile(s)
			}
			why := reasons.refusal(reasons.shapeOf(b.class), s.Classes[b.class], f.left)
			if why.Reason == ReasonUnsupported && f.ruled(b.class) {
				why = Refusal{ReasonRule, "the places that other pods leave to it, by rules of its own or of theirs, are full or do not exist: " +
					"relax the rules, or allow more machines in the NodePool's requirements"}
			}
			for _, pod := range b.pods[next[i]:] {
				plan.Unplaced = append(plan.Unplaced, Unplaced{Pod: pod, Refusal: why})
			}
		}
	}
	slices.SortStableFunc(plan.Unplaced, func(a, b Unplaced) int { return strings.Compare(a.Pod, b.Pod) })
	return plan
}

// pods takes the names of the pods of a filling, and says on which GPU of the machine each of them is.
func (f *firstFit) pods(x *filling, o option, next []int) ([]string, []int) {
	type seat struct {
		pod string
		gpu int
	}
	var seats []seat
	var gpus []GPU
	if o.layout >= 0 {
		gpus = slices.Clone(f.layouts[o.layout])
	}
	stated := false
	for _, part := range x.parts.inOrder() {
		b := f.batches[part.batch]
		class := f.snapshot.Classes[b.class]
		names := b.pods[next[part.batch] : next[part.batch]+int(part.pods)]
		next[part.batch] += int(part.pods)
		if class.GPUMemoryBytes == 0 {
			for _, name := range names {
				seats = append(seats, seat{name, -1})
			}
			continue
		}
		stated = true
		fill(gpus, class, part.pods, func(gpu int, pods int32) {
			for _, name := range names[:pods] {
				seats = append(seats, seat{name, gpu})
			}
			names = names[pods:]
		})
	}
	slices.SortFunc(seats, func(a, b seat) int { return strings.Compare(a.pod, b.pod) })
	pods, on := make([]string, len(seats)), make([]int, len(seats))
	for i, x := range seats {
		pods[i], on[i] = x.pod, x.gpu
	}
	if !stated {
		on = nil
	}
	return pods, on
}
