package planner

import (
	"cmp"
	"math"
	"slices"
)

// unit is the whole of a dimension of a machine in the scaled weights of a knapsack. Weights round down, so that what the
// scaled problem cannot hold the machine cannot hold either, and a bound on the former bounds the latter.
const unit = 1 << 20

// valueScale is how many units of value make a micro-dollar an hour: the worth of a pod is finer than money.
const valueScale = 1 << 10

// knapsack finds the most valuable load of one machine: branch and bound by value for room, where the room taken is a
// weighted sum of the dimensions. The weights lean towards the dimensions that run out; any weights give a valid bound.
type knapsack struct {
	*capacity
	problem *problem
	items   []item
	lean    [dims]int64

	// ranked are the items of any worth, the most valuable for their room first, in a room that is the whole machine's.
	ranked []*item
	room   int64

	// The rest is scratch of one search.
	order   []*item
	current load
	best    load
	ledger  ledger
	value   int64
	upper   int64
	steps   int
	// spare and rest are for loads that have no GPUs for all their pods.
	spare load
	rest  room
}

// item is a shape as a knapsack sees it.
type item struct {
	shape   int
	of      *shape
	plain   bool
	request vec
	fits    int32
	scaled  vec
	// value of one pod, most pods to take, and room that one takes: valid during one search.
	value int64
	most  int32
	room  int64
}

func newKnapsack(p *problem, c *capacity) *knapsack {
	n := len(p.shapes)
	k := &knapsack{capacity: c, problem: p, current: make(load, n), best: make(load, n), spare: make(load, n), ledger: newLedger(p)}
	k.rest.ledger = newLedger(p)
	for d := range k.lean {
		k.lean[d] = 1 << 10
	}
	for i, n := range c.fits {
		if n == 0 {
			continue
		}
		s := &p.shapes[i]
		it := item{shape: i, of: s, plain: s.plain(), request: s.request, fits: n}
		for d, r := range it.request {
			if r > 0 {
				it.scaled[d] = mulDiv(r, unit, c.free[d])
			}
		}
		k.items = append(k.items, it)
	}
	return k
}

// price sets what one pod of each shape is worth, and leans the weights with it over the given demand.
func (k *knapsack) price(values []int64, demand load, rounds int) {
	k.ranked = k.ranked[:0]
	for i := range k.items {
		it := &k.items[i]
		it.value, it.most = values[it.shape], min(it.fits, demand[it.shape])
		if it.value > 0 {
			k.ranked = append(k.ranked, it)
		}
	}
	k.tilt(rounds)
}

// search looks for the load with the greatest value among the demand, in at most the given steps, at the worths that price set. It
// returns the value of k.best, the best load that it met, and an upper bound on the value of any load. Loads worth no more than
// floor are of no interest: the value may be 0 instead of theirs, and the bound is not below the floor. A higher floor
// makes a shorter search.
func (k *knapsack) search(demand load, steps int, floor int64) (value, upper int64) {
	clear(k.best)
	clear(k.current)
	k.order = k.order[:0]
	for _, it := range k.ranked {
		if it.most = min(it.fits, demand[it.shape]); it.most > 0 {
			k.order = append(k.order, it)
		}
	}
	if len(k.order) == 0 {
		return 0, floor
	}
	k.value, k.upper, k.steps = floor, floor, steps
	k.ledger.open(k.capacity)
	k.branch(0, 0, k.free, k.room)
	if upper = max(k.upper, k.value); k.value == floor {
		return 0, upper
	}
	return k.value, upper
}

func (k *knapsack) whole() int64 {
	var c int64
	for _, l := range k.lean {
		c += l * unit
	}
	return c
}

// weigh sets the room that each item takes at the present weights and sorts by value for room.
func (k *knapsack) weigh() {
	k.room = k.whole()
	for _, it := range k.ranked {
		it.room = 0
		for d, w := range it.scaled {
			it.room += k.lean[d] * w
		}
	}
	slices.SortFunc(k.ranked, func(a, b *item) int {
		return cmp.Or(-compareProducts(a.value, b.room, b.value, a.room), cmp.Compare(a.shape, b.shape))
	})
}

// tilt moves the weights towards the dimensions that the fractional optimum overfills, and keeps those with the least bound.
func (k *knapsack) tilt(rounds int) {
	best, kept := int64(math.MaxInt64), k.lean
	for round := range rounds {
		k.weigh()
		bound, used := k.fractional()
		if bound < best {
			best, kept = bound, k.lean
		}
		for d := range k.lean {
			// A dimension filled to f of itself is weighed f times as much, f within a half and two; later by less and less, so that it settles.
			f := min(max(used[d], unit/2), 2*unit)
			if round > 2 {
				f = (3*unit + f) / 4
			}
			k.lean[d] = min(max(k.lean[d]*f/unit, 1), 1<<16)
		}
	}
	k.lean = kept
	k.weigh()
}

// fractional fills the room alone, in order, the last item in part, and returns the value and how full each dimension would be.
func (k *knapsack) fractional() (int64, vec) {
	var value int64
	var used vec
	left := k.room
	for _, it := range k.ranked {
		if it.most == 0 {
			continue
		}
		if it.room == 0 {
			value += it.value * int64(it.most)
			continue
		}
		n := min(int64(it.most), left/it.room)
		value += it.value * n
		left -= n * it.room
		for d, w := range it.scaled {
			used[d] += w * n
		}
		if n < int64(it.most) {
			value += mulDivUp(left, it.value, it.room)
			for d, w := range it.scaled {
				used[d] += mulDiv(w, left, it.room)
			}
			break
		}
	}
	return value, used
}

// fit is how many pods of the item fit, most of the time without a division.
func (k *knapsack) fit(it *item, free *vec) int32 {
	n := int64(it.most)
	for d, r := range it.request {
		// Cannot overflow: so many pods fit on the whole machine.
		if r*n > free[d] {
			n = free[d] / r
		}
	}
	if !it.plain && n > 0 {
		return k.ledger.fit(it.of, int32(n))
	}
	return int32(n)
}

// bound returns an upper bound on the value that the items from i on can add.
func (k *knapsack) bound(i int, free *vec, left int64) int64 {
	var value int64
	for _, it := range k.order[i:] {
		n := int64(k.fit(it, free))
		if n == 0 {
			continue
		}
		if it.room*n > left {
			return value + mulDivUp(left, it.value, it.room)
		}
		value += n * it.value
		left -= n * it.room
	}
	return value
}

func (k *knapsack) branch(i int, value int64, free vec, left int64) {
	upper := value + k.bound(i, &free, left)
	if upper <= k.value {
		return
	}
	if k.steps <= 0 {
		k.upper = max(k.upper, upper)
		return
	}
	k.steps--
	if i == len(k.order) {
		k.reach(value)
		return
	}
	it := k.order[i]
	most := k.fit(it, &free)
	for n := most; n >= 0; n-- {
		rest := free
		rest.take(it.request, n)
		k.current[it.shape] = n
		if !it.plain {
			k.ledger.take(it.of, n)
		}
		k.branch(i+1, value+int64(n)*it.value, rest, max(0, left-int64(n)*it.room))
		if !it.plain {
			k.ledger.take(it.of, -n)
		}
		if k.steps <= 0 && n > 0 {
			// Out of steps: one bound covers all the fewer pods of this item, since it allows any number.
			k.upper = max(k.upper, upper)
			break
		}
	}
	k.current[it.shape] = 0
}

// reach keeps the current load, which is worth more than the best so far. Where there are not GPUs for all its pods it is only a bound, and
// what of it has GPUs, with whatever else fits then, may be kept instead.
func (k *knapsack) reach(value int64) {
	if !k.binned || k.problem.assign(k.capacity, k.current, &k.rest, nil) {
		k.value = value
		copy(k.best, k.current)
		return
	}
	k.upper = max(k.upper, value)
	clear(k.spare)
	k.rest.fill(k.problem, k.capacity, k.spare)
	value = 0
	add := func(i int, most int32, worth int64) {
		n := k.rest.add(k.problem, k.capacity, i, most)
		k.spare[i] += n
		value += worth * int64(n)
	}
	for _, it := range k.order {
		add(it.shape, k.current[it.shape], it.value)
	}
	for _, it := range k.order {
		add(it.shape, it.most-k.spare[it.shape], it.value)
	}
	if value > k.value && k.problem.assign(k.capacity, k.spare, &k.rest, nil) {
		k.value = value
		copy(k.best, k.spare)
	}
}
