package firstfit

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Steps is the default limit on pods times machines, which takes some tenths of a second. Up to it, [Plan] makes exactly Karpenter's decisions.
const Steps = 20_000_000

// Plan returns the plan that Karpenter's scheduler would make of a valid snapshot if it knew about replicas and GPU memory. The solver's plans are compared
// with it, and it is used if nothing better is found in time.
//
// As in Karpenter, pods are sorted by CPU and then by memory, the largest first. Each goes to the first node by name that has room, otherwise to the
// new machine with the fewest pods that some offering can still serve, otherwise to another new machine. A new machine can at first be any suitable
// offering of the pool with the highest weight. The limit of the pool is charged with the largest machine that a new one can become, and each stock with what it
// draws at most. At the end, each machine becomes the cheapest offering that it can still be.
//
// Rules are checked pod by pod. Preferences, priorities and minValues are ignored. The bound of the plan is 0.
func Plan(s planner.Snapshot) planner.Plan { return newPacker(s).pack() }

// Limits bound the work of [Within].
type Limits struct {
	// Sorted is the limit on pods times machines up to which the machines are sorted for every pod, as Karpenter does. Beyond it, pods are dealt class by
	// class.
	Sorted int64
	// RuledPods is the maximum number of pods subject to rules, which are placed one by one.
	RuledPods int
}

// Within is [Plan] within limits. It returns false if more pods are subject to rules than the limits allow.
func Within(s planner.Snapshot, limits Limits) (planner.Plan, bool) {
	f := newPacker(s)
	if f.ruledPods() > limits.RuledPods {
		return planner.Plan{}, false
	}
	f.steps = limits.Sorted
	return f.pack(), true
}

// ruledPods returns the number of pods that are subject to a rule.
func (f *packer) ruledPods() int {
	pods := 0
	for _, b := range f.batches {
		if f.ruled(b.class) {
			pods += len(b.pods)
		}
	}
	return pods
}

// packer is a snapshot that is being packed. What fits is computed by class, not by pod.
type packer struct {
	snapshot planner.Snapshot
	batches  []batch
	// options are what a machine can be: the usable offerings in stable order, followed by the nodes by name.
	options []option
	// layouts are the distinct lists of GPUs of the options.
	layouts [][]planner.GPU
	// apart are the rules that keep pods apart on a machine.
	apart []planner.Rule
	// headcounts are the other rules.
	headcounts []*headcount
	// about are the headcounts that concern each class. sidings are the rules of apart that do.
	about   [][]relation
	sidings [][]siding
	pools   []poolOptions
	// stocked reports, by pool, whether any of its offerings draws from a stock.
	stocked []bool
	left    pack.Limits
	nodes   []*order
	// orders are the new machines, in the order in which pods try them.
	orders []*order
	// steps is what remains of the limit up to which machines are sorted for every pod.
	steps   int64
	refused []planner.Unplaced
}

// batch is the pods of a class.
type batch struct {
	class    int
	pods     []string
	request  amount.Vector
	unplaced int32
}

type poolOptions struct {
	pool    int
	options []int32
}

// order is a node, or a new machine that can still become one of several offerings.
type order struct {
	filling *filling
	// machine is the index of a node. New machines have the numbers after the nodes.
	machine int
	pods    int32
	// room is the number of pods of the current batch that still fit. take is the number of pods that the machine was given.
	room, take int32
	// turn orders machines with equally many pods in dealByLevel.
	turn int
}

func newPacker(s planner.Snapshot) *packer {
	f := &packer{snapshot: s, steps: Steps, left: pack.LimitsOf(s)}
	f.headcounts = newHeadcounts(s)
	for i, r := range s.Rules {
		if r.Kind == planner.Apart && r.Topology == planner.PerNode {
			r.Classes = demanding(s, i)
			f.apart = append(f.apart, r)
		}
	}
	f.about, f.sidings = relations(f.headcounts, len(s.Classes)), sidings(f.apart, len(s.Classes))
	f.addBatches()
	f.addOptions()
	return f
}

// addBatches adds the classes in the order in which their pods are placed, and refuses blocked ones.
func (f *packer) addBatches() {
	for _, c := range pack.ClassOrder(f.snapshot) {
		class := f.snapshot.Classes[c]
		if class.Blocked != nil {
			for _, pod := range class.Pods {
				f.refused = append(f.refused, planner.Unplaced{Pod: pod, Refusal: *class.Blocked})
			}
		} else if len(class.Pods) > 0 { // Otherwise no machines need to be tried for it.
			f.batches = append(f.batches, batch{class: c, pods: class.Pods, request: amount.VectorOf(class.Requests)})
		}
	}
	slices.SortStableFunc(f.batches, func(a, b batch) int {
		return cmp.Or(cmp.Compare(b.request[amount.CPU], a.request[amount.CPU]), cmp.Compare(b.request[amount.Memory], a.request[amount.Memory]))
	})
}

// addOptions adds what machines can be: offerings, by pool in Karpenter's order, and nodes by name.
func (f *packer) addOptions() {
	s := f.snapshot
	byPool := make([][]int32, len(s.Pools))
	f.stocked = make([]bool, len(s.Pools))
	for _, i := range pack.UsableOfferings(s) {
		o := s.Offerings[i]
		byPool[o.Pool] = append(byPool[o.Pool], int32(len(f.options)))
		f.stocked[o.Pool] = f.stocked[o.Pool] || len(o.Draws) > 0
		f.options = append(f.options, option{index: i, free: amount.VectorOf(o.Free), quotas: o.Quotas, layout: f.layout(o.GPUs)})
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
		if !amount.VectorOf(n.Free).Negative() {
			nodes = append(nodes, i)
		}
	}
	slices.SortStableFunc(nodes, func(i, j int) int { return cmp.Compare(s.Nodes[i].Name, s.Nodes[j].Name) })
	for _, i := range nodes {
		n := s.Nodes[i]
		f.options = append(f.options, option{index: i, node: true, free: amount.VectorOf(n.Free), quotas: n.Quotas, layout: f.layout(n.GPUs)})
	}
	for i := len(f.options) - len(nodes); i < len(f.options); i++ {
		f.nodes = append(f.nodes, &order{filling: f.empty([]int32{int32(i)}), machine: f.options[i].index})
	}
}

// pack places all pods. Pods that were not placed because of rules are tried again as long as that succeeds for some.
func (f *packer) pack() planner.Plan {
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

// place places the pods of a batch on nodes, then on existing orders, then on new ones.
func (f *packer) place(i int) {
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

// deal places pods one by one, each on the first order with room, or on a new one. It returns the number of pods that are not placed. Before each pod it sorts
// the orders as Karpenter does. [sort.Slice] is not stable, and the same function has to be used to get the same order.
func (f *packer) deal(p *placing, pods int32) int32 {
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

func (f *packer) sortOrders() {
	sort.Slice(f.orders, func(i, j int) bool { return f.orders[i].pods < f.orders[j].pods })
}

// dealByLevel is deal for many pods and machines. It proceeds from the machines with the fewest pods to those with more. The result is that of a stable sort,
// and so equals that of deal for up to twelve machines.
func (f *packer) dealByLevel(p *placing, pods int32) int32 {
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
		// A machine that was given a pod comes before others with equally many pods.
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

// open adds a new machine that can hold a pod of the batch. It returns nil if there is none.
func (f *packer) open(p *placing) *order {
	for _, pool := range f.pools {
		if x := f.openFrom(p, pool, func(*order) bool { return true }); x != nil {
			return x
		}
	}
	return nil
}

// openFrom is open for one pool. It returns nil if use returns false for the new machine. The pool is charged with the largest offering that the machine can
// be, and stocks as well.
func (f *packer) openFrom(p *placing, pool poolOptions, use func(*order) bool) *order {
	within := pool.options
	if f.limited(pool.pool) {
		within = slices.DeleteFunc(slices.Clone(within), func(o int32) bool { c := f.charge(o); return !f.left.Admits(&c) })
	}
	fresh := p.fresh(pool.pool, within)
	if fresh == nil {
		return nil
	}
	x := &order{filling: fresh, machine: len(f.snapshot.Nodes) + len(f.orders)}
	if !use(x) {
		return nil
	}
	most := pack.Charge{Pool: pool.pool}
	draws := map[int]int64{}
	for _, o := range x.filling.options {
		c := f.charge(o)
		for d, n := range c.Uses {
			most.Uses[d] = max(most.Uses[d], n)
		}
		for _, d := range c.Draws {
			draws[d.Stock] = max(draws[d.Stock], d.Amount)
		}
	}
	for stock, n := range draws {
		most.Draws = append(most.Draws, planner.Draw{Stock: stock, Amount: n})
	}
	f.left.Launch(&most)
	return x
}

// limited reports whether the machines of a pool are limited in number.
func (f *packer) limited(pool int) bool {
	return f.stocked[pool] || !f.left.Pool(pool).Unlimited()
}

// charge returns what a machine of an offering counts against limits and draws.
func (f *packer) charge(o int32) pack.Charge {
	return pack.ChargeOf(f.snapshot.Offerings[f.options[o].index])
}

// plan returns the plan with the names of pods and offerings.
func (f *packer) plan() planner.Plan {
	s := f.snapshot
	next := make([]int, len(f.batches))
	var plan planner.Plan
	for _, n := range f.nodes {
		if n.pods > 0 {
			o := f.options[n.filling.options[0]]
			pods, gpus := f.pods(n.filling, o, next)
			plan.Placements = append(plan.Placements, planner.Placement{Node: o.index, Pods: pods, GPUs: gpus})
		}
	}
	for _, x := range f.orders {
		var o option
		price := planner.MicroUSD(math.MaxInt64)
		for _, i := range x.filling.options {
			if can := f.options[i]; s.Offerings[can.index].Price < price {
				o, price = can, s.Offerings[can.index].Price
			}
		}
		pods, gpus := f.pods(x.filling, o, next)
		plan.Launches = append(plan.Launches, planner.Launch{Offering: o.index, Pods: pods, GPUs: gpus})
		plan.Price += price
	}
	slices.SortStableFunc(plan.Launches, func(a, b planner.Launch) int { return pack.CompareOfferings(s, a.Offering, b.Offering) })
	plan.Unplaced = f.refused
	var reasons *pack.Problem
	for i, b := range f.batches {
		if b.unplaced > 0 {
			if reasons == nil {
				reasons = pack.Compile(s)
			}
			why := reasons.Refusal(reasons.ShapeOf(b.class), s.Classes[b.class], f.left)
			if why.Reason == planner.ReasonUnsupported && f.ruled(b.class) {
				why = planner.Refusal{Reason: planner.ReasonRule, Message: "the places that other pods leave to it, by rules of its own or of theirs, are full or do not exist: " +
					"relax the rules, or allow more machines in the NodePool's requirements"}
			}
			for _, pod := range b.pods[next[i]:] {
				plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod, Refusal: why})
			}
		}
	}
	slices.SortStableFunc(plan.Unplaced, func(a, b planner.Unplaced) int { return strings.Compare(a.Pod, b.Pod) })
	return plan
}

// pods takes the names of the pods of a filling. It returns them sorted, with the GPU of each; the GPUs are nil if no pod requests device memory.
func (f *packer) pods(x *filling, o option, next []int) ([]string, []int) {
	type seat struct {
		pod string
		gpu int
	}
	var seats []seat
	var gpus []planner.GPU
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
