package pricing

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/lp"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// unit is the full capacity of a dimension of a machine in the scaled weights of a knapsack. Weights are rounded down, so the scaled problem can hold
// whatever the machine can hold, and a bound on the former bounds the latter.
const unit = 1 << 20

// Scale is the number of units of worth in a micro-dollar per hour. Worths are finer than prices.
const Scale = 1 << 10

// Knapsack finds the most valuable load of one machine by branch and bound in the order of value per room. The room of a pod is a weighted sum of its
// dimensions (a surrogate constraint). The weights are the duals of the relaxation's dimensions; any weights give a valid bound.
type Knapsack struct {
	capacity *pack.Capacity
	problem  *pack.Problem
	items    []item
	byRoom   []int // the items, those with the most device memory first
	relaxed  lp.Simplex
	lean     [amount.Dims]int64

	// ranked are the items with positive value, those with the greatest value per room first. room is the room of the whole machine.
	ranked []*item
	room   int64

	// The rest is scratch space of one search.
	order   []*item
	current pack.Load
	Best    pack.Load
	// more has earlier best loads, the oldest first. The last others of them are valid.
	more   [keepMore]pack.Load
	others int
	ledger pack.Ledger
	value  int64
	upper  int64
	Steps  int
	// spare and rest are for loads whose pods do not all have a GPU.
	spare pack.Load
	rest  pack.Room
}

// item is a shape in a knapsack.
type item struct {
	request amount.Vector
	// value and room are those of one pod, and most is the maximum number of pods. They are valid during one search.
	value  int64
	room   int64
	most   int32
	ample  bool // whether there are enough pods to fill the machine
	plain  bool
	shape  int
	of     *pack.Shape
	fits   int32
	filled int32 // fits for an unlimited number of pods
	scaled amount.Vector
}

// NewKnapsack returns the pricing problem of a machine.
func NewKnapsack(p *pack.Problem, c *pack.Capacity) *Knapsack {
	n := len(p.Shapes)
	k := &Knapsack{
		capacity: c, problem: p, current: make(pack.Load, n), Best: make(pack.Load, n), spare: make(pack.Load, n),
		ledger: pack.NewLedger(p), rest: pack.Room{Ledger: pack.NewLedger(p)},
	}
	for d := range amount.Dims {
		k.lean[d] = 1 << 10
	}
	items := 0
	for _, n := range c.Fits {
		items += int(min(n, 1))
	}
	k.items, k.byRoom = make([]item, 0, items), make([]int, 0, items)
	for i, n := range c.Fits {
		if n == 0 {
			continue
		}
		s := &p.Shapes[i]
		it := item{shape: i, of: s, plain: s.Plain(), request: s.Request, fits: n, filled: c.Alone(s, math.MaxInt32)}
		for d, r := range it.request {
			if r > 0 {
				it.scaled[d] = amount.MulDiv(r, unit, c.Free[d])
			}
		}
		k.items = append(k.items, it)
		k.byRoom = append(k.byRoom, len(k.byRoom))
	}
	slices.SortStableFunc(k.byRoom, func(i, j int) int {
		a, b := &k.items[i].request, &k.items[j].request
		return cmp.Or(cmp.Compare(b[amount.GPUMemory], a[amount.GPUMemory]), cmp.Compare(b[amount.Replicas], a[amount.Replicas]))
	})
	k.relax()
	return k
}

// Part returns the knapsack of the same machine in a part of the problem, with the same weights of the dimensions. at has the index in the part of each shape,
// or -1. Only [Knapsack.Aim] may set the worths of pods, because the knapsack has no relaxation.
func (k *Knapsack) Part(p *pack.Problem, c *pack.Capacity, at []int) *Knapsack {
	n := len(p.Shapes)
	loads := make(pack.Load, 3*n)
	x := &Knapsack{
		capacity: c, problem: p, lean: k.lean, current: loads[:n:n], Best: loads[n : 2*n : 2*n], spare: loads[2*n:],
		ledger: pack.NewLedger(p), rest: pack.Room{Ledger: pack.NewLedger(p)},
	}
	x.items, x.byRoom = make([]item, 0, n), make([]int, 0, n)
	for _, i := range k.byRoom {
		if to := at[k.items[i].shape]; to >= 0 {
			it := k.items[i]
			it.shape, it.of, it.fits = to, &p.Shapes[to], c.Fits[to]
			x.byRoom, x.items = append(x.byRoom, len(x.items)), append(x.items, it)
		}
	}
	return x
}

// relax makes the linear relaxation of the items: fractions of pods within the machine's dimensions.
func (k *Knapsack) relax() {
	k.relaxed.Reset()
	k.relaxed.Grow(len(k.items))
	for range amount.Dims {
		k.relaxed.AddRow(-1, nil, -1)
	}
	rows, uses := make([]int32, 0, len(k.items)*amount.Dims), make([]float64, 0, len(k.items)*amount.Dims)
	for i := range k.items {
		for d, r := range k.items[i].request {
			if r > 0 {
				rows, uses = append(rows, int32(d)), append(uses, -float64(r)/float64(k.capacity.Free[d]))
			}
		}
		k.relaxed.AddColumn(0, 0, rows, uses)
		rows, uses = rows[len(rows):], uses[len(uses):]
	}
}

// relaxSteps limits the pivots of a machine's relaxation. Its duals give valid bounds at any time.
const relaxSteps = 60

// Price sets the worth of one pod of each shape, computes the weights of the dimensions for the given demand, and returns an upper bound on the value of any
// load within it. Later searches must be for the same demand, because dominated items are dropped.
func (k *Knapsack) Price(values []int64, demand pack.Load) int64 {
	k.Weigh(values, demand)
	k.thin()
	return k.fractional()
}

// Weigh is Price for searches with decreasing demand: it keeps dominated items.
func (k *Knapsack) Weigh(values []int64, demand pack.Load) {
	for i := range k.items {
		it := &k.items[i]
		it.value = values[it.shape]
		k.relaxed.SetPrice(i, -float64(it.value))
		k.relaxed.SetMax(i, float64(min(it.fits, demand[it.shape])))
	}
	k.relaxed.Solve(relaxSteps, nil)
	duals := k.relaxed.Duals()
	if largest := slices.Max(duals); largest > 0 {
		for d, dual := range duals {
			k.lean[d] = max(1, int64(float64(dual/largest)*(1<<16)))
		}
	}
	k.rank(demand)
}

// maxThinned is the number of items beyond which it does not pay to compare all pairs.
const maxThinned = 100

// thin drops dominated items. A dominating item requests no more, is worth no less, and has enough pods for the whole machine.
func (k *Knapsack) thin() {
	if len(k.ranked) > maxThinned {
		return
	}
	kept := k.ranked[:0]
	for i, it := range k.ranked {
		beaten := false
		for _, by := range kept {
			if beaten = by.dominates(it); beaten {
				break
			}
		}
		for _, by := range k.ranked[i+1:] {
			if beaten = beaten || by.dominates(it) && !it.dominates(by); beaten {
				break
			}
		}
		if !beaten {
			kept = append(kept, it)
		}
	}
	k.ranked = kept
}

// dominates reports whether any number of pods of the other item can be replaced by pods of this one.
func (it *item) dominates(o *item) bool {
	if it.value < o.value || !it.ample || !it.plain {
		return false
	}
	for d := range it.request {
		if it.request[d] > o.request[d] {
			return false
		}
	}
	return true
}

// Aim sets the worth of one pod of each shape, and keeps the weights of the dimensions.
func (k *Knapsack) Aim(values []int64, demand pack.Load) {
	for i := range k.items {
		k.items[i].value = values[k.items[i].shape]
	}
	k.rank(demand)
}

// rank sorts the items that have positive value and demand by value per room.
func (k *Knapsack) rank(demand pack.Load) {
	k.room = 0
	for _, l := range k.lean {
		k.room += l * unit
	}
	k.ranked = k.ranked[:0]
	for i := range k.items {
		it := &k.items[i]
		it.most = min(it.fits, demand[it.shape])
		it.ample = demand[it.shape] >= it.filled
		if it.value <= 0 || it.most <= 0 {
			continue
		}
		it.room = 0
		for d, w := range &it.scaled {
			it.room += k.lean[d] * w
		}
		k.ranked = append(k.ranked, it)
	}
	slices.SortFunc(k.ranked, func(a, b *item) int {
		if c := amount.CompareProducts(b.value, a.room, a.value, b.room); c != 0 {
			return c
		}
		return cmp.Compare(a.shape, b.shape)
	})
}

// fractional fills the room alone, in order, with a fraction of the last item. It returns the value, which is an upper bound on the value of any load.
func (k *Knapsack) fractional() int64 {
	var value int64
	left := k.room
	for _, it := range k.ranked {
		n := int64(it.most)
		if it.room*n > left {
			return value + amount.MulDivUp(left, it.value, it.room)
		}
		value += it.value * n
		left -= it.room * n
	}
	return value
}

// Search searches for the load with the greatest value within the demand, in at most the given steps, at the worths that were set last. It returns the value
// of Best, the best load found, and an upper bound on the value of any load. Loads worth at most floor are of no interest: the value is 0 if no better one is
// found, and the bound is at least the floor. A higher floor makes the search shorter.
func (k *Knapsack) Search(demand pack.Load, steps int, floor int64) (value, upper int64) {
	clear(k.Best)
	clear(k.current)
	k.others = 0
	k.order = k.order[:0]
	for _, it := range k.ranked {
		if it.most = min(it.fits, demand[it.shape]); it.most > 0 {
			k.order = append(k.order, it)
		}
	}
	k.value, k.upper, k.Steps = floor, floor, steps
	if len(k.order) == 0 {
		return 0, floor
	}
	k.ledger.Open(k.capacity)
	if len(k.order) >= steps {
		// Even a single dive might not end within the steps.
		k.build(func(int) int32 { return 0 })
		k.upper = max(k.upper, k.bound(0, k.fit(k.order[0], &k.capacity.Free), &k.capacity.Free, k.room))
	} else {
		k.branch(0, 0, k.capacity.Free, k.room)
	}
	if upper = max(k.upper, k.value); k.value == floor {
		return 0, upper
	}
	return k.value, upper
}

// fit returns how many pods of the item fit. It usually needs no division.
func (k *Knapsack) fit(it *item, free *amount.Vector) int32 {
	n := int64(it.most)
	for d, r := range &it.request {
		// This cannot overflow, because that many pods fit on the whole machine.
		if r*n > free[d] {
			n = free[d] / r
		}
	}
	if !it.plain && n > 0 {
		return k.ledger.Fit(it.of, int32(n))
	}
	return int32(n)
}

// bound returns an upper bound on the value that the items from i on can add. most is the number of pods of the first one that fit.
func (k *Knapsack) bound(i int, most int32, free *amount.Vector, left int64) int64 {
	var value int64
	for n := int64(most); ; n = int64(k.fit(k.order[i], free)) {
		it := k.order[i]
		if it.room*n > left {
			return value + amount.MulDivUp(left, it.value, it.room)
		}
		value += n * it.value
		left -= n * it.room
		if i++; i == len(k.order) {
			return value
		}
	}
}

func (k *Knapsack) branch(i int, value int64, free amount.Vector, left int64) {
	most := int32(0)
	for ; i < len(k.order); i++ {
		if most = k.fit(k.order[i], &free); most > 0 {
			break
		}
	}
	upper := value
	if most > 0 {
		upper += k.bound(i, most, &free, left)
	}
	if upper <= k.value {
		return
	}
	if k.Steps <= 0 {
		k.upper = max(k.upper, upper)
		return
	}
	k.Steps--
	if most == 0 {
		k.reach(value)
		return
	}
	it := k.order[i]
	for n := most; n >= 0; n-- {
		rest := free
		rest.Take(it.request, n)
		k.current[it.shape] = n
		if !it.plain {
			k.ledger.Take(it.of, n)
		}
		k.branch(i+1, value+int64(n)*it.value, rest, max(0, left-int64(n)*it.room))
		if !it.plain {
			k.ledger.Take(it.of, -n)
		}
		if k.Steps <= 0 && n > 0 {
			// Out of steps: one bound covers all smaller numbers of pods of this item, because it allows any number.
			k.upper = max(k.upper, upper)
			break
		}
	}
	k.current[it.shape] = 0
}

// keepMore is the number of loads other than the best that a search returns.
const keepMore = 3

// keep makes a load the best so far.
func (k *Knapsack) keep(l pack.Load, value int64) {
	if k.value > 0 && !k.Best.Empty() {
		oldest := k.more[0]
		copy(k.more[:], k.more[1:])
		k.more[keepMore-1] = append(oldest[:0], k.Best...)
		k.others = min(k.others+1, keepMore)
	}
	k.value = value
	copy(k.Best, l)
}

// reach keeps the current load, which is worth more than the best so far. If not all of its pods get a GPU, its value is only a bound. The part of it
// whose pods do, with whatever else fits, may then be kept instead.
func (k *Knapsack) reach(value int64) {
	if !k.capacity.Binned || k.problem.AssignAtOnce(k.capacity, k.current, &k.rest, nil) {
		k.keep(k.current, value)
		return
	}
	k.upper = max(k.upper, value)
	k.Steps -= buildCost
	k.build(func(shape int) int32 { return k.current[shape] })
}

// buildCost is the cost of build in steps, if the GPUs did not suffice.
const buildCost = 8

// build makes a load whose pods all have GPUs: first the wanted number of each shape, then whatever fits. It keeps the load if it is worth more than the best
// so far.
func (k *Knapsack) build(wanted func(shape int) int32) {
	clear(k.spare)
	k.rest.Fill(k.problem, k.capacity, k.spare)
	var value int64
	add := func(it *item, most int32) {
		if most > 0 && it.value > 0 {
			n := k.rest.Add(k.problem, k.capacity, it.shape, most)
			k.spare[it.shape] += n
			value += it.value * int64(n)
		}
	}
	// GPUs are assigned to the largest pods first.
	for _, i := range k.byRoom {
		it := &k.items[i]
		add(it, min(it.most, wanted(it.shape)))
	}
	for _, it := range k.order {
		add(it, it.most-k.spare[it.shape])
	}
	if value > k.value && (!k.capacity.Binned || k.problem.AssignAtOnce(k.capacity, k.spare, &k.rest, nil)) {
		k.keep(k.spare, value)
	}
}
