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
	free  vec
	items []item
	lean  [dims]int64

	// The rest is scratch of one search.
	order   []*item
	current load
	best    load
	value   int64
	upper   int64
	steps   int
}

// item is a shape as a knapsack sees it.
type item struct {
	shape   int
	request vec
	fits    int32
	scaled  vec
	// value of one pod, most pods to take, and room that one takes: valid during one search.
	value int64
	most  int32
	room  int64
}

func newKnapsack(p *problem, free vec, fits []int32) *knapsack {
	k := &knapsack{free: free, current: make(load, len(fits)), best: make(load, len(fits))}
	for d := range k.lean {
		k.lean[d] = 64
	}
	for i, n := range fits {
		if n == 0 {
			continue
		}
		it := item{shape: i, request: p.shapes[i].request, fits: n}
		for d, r := range it.request {
			if r > 0 {
				it.scaled[d] = mulDiv(r, unit, free[d])
			}
		}
		k.items = append(k.items, it)
	}
	return k
}

// search looks for the load with the greatest value among the demand, in at most the given steps. It returns the value of
// k.best, the best load that it met, and an upper bound on the value of any load. Values up to floor are of no interest: there
// the load may be empty and the bound no lower than the floor.
func (k *knapsack) search(values []int64, demand load, steps int, floor int64) (value, upper int64) {
	k.order = k.order[:0]
	for i := range k.items {
		it := &k.items[i]
		it.value, it.most = values[it.shape], min(it.fits, demand[it.shape])
		if it.value > 0 && it.most > 0 {
			k.order = append(k.order, it)
		}
	}
	clear(k.best)
	clear(k.current)
	if len(k.order) == 0 {
		return 0, max(floor, 0)
	}
	k.tilt()
	k.value, k.upper, k.steps = floor, floor, steps
	k.branch(0, 0, k.free, k.capacity())
	upper = max(k.upper, k.value)
	if k.best.empty() {
		return 0, upper
	}
	return k.value, upper
}

func (k *knapsack) capacity() int64 {
	var c int64
	for _, l := range k.lean {
		c += l * unit
	}
	return c
}

// weigh sets the room that each item takes at the present weights and sorts by value for room.
func (k *knapsack) weigh() {
	for _, it := range k.order {
		it.room = 0
		for d, w := range it.scaled {
			it.room += k.lean[d] * w
		}
	}
	slices.SortFunc(k.order, func(a, b *item) int {
		return cmp.Or(-compareProducts(a.value, b.room, b.value, a.room), cmp.Compare(a.shape, b.shape))
	})
}

// tilt moves the weights towards the dimensions that the fractional optimum overfills, and keeps those with the least bound.
func (k *knapsack) tilt() {
	const rounds = 6
	best, kept := int64(math.MaxInt64), k.lean
	for range rounds {
		k.weigh()
		bound, used := k.fractional()
		if bound < best {
			best, kept = bound, k.lean
		}
		changed := false
		for d := range k.lean {
			// A dimension filled to f of itself is weighed f times as much, at least half and at most twice.
			f := min(max(used[d], unit/2), 2*unit)
			next := min(max(k.lean[d]*f/unit, 1), 1<<12)
			changed = changed || next != k.lean[d]
			k.lean[d] = next
		}
		if !changed {
			break
		}
	}
	k.lean = kept
	k.weigh()
}

// fractional fills the room alone, in order, the last item in part, and returns the value and how full each dimension would be.
func (k *knapsack) fractional() (int64, vec) {
	var value int64
	var used vec
	left := k.capacity()
	for _, it := range k.order {
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

// bound returns an upper bound on the value that the items from i on can add.
func (k *knapsack) bound(i int, free vec, left int64) int64 {
	var value int64
	for _, it := range k.order[i:] {
		n := int64(free.fit(it.request, it.most))
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
	upper := value + k.bound(i, free, left)
	if upper <= k.value {
		return
	}
	if k.steps <= 0 {
		k.upper = max(k.upper, upper)
		return
	}
	k.steps--
	if i == len(k.order) {
		k.value = value
		copy(k.best, k.current)
		return
	}
	it := k.order[i]
	most := free.fit(it.request, it.most)
	for n := most; n >= 0; n-- {
		rest := free
		rest.take(it.request, n)
		k.current[it.shape] = n
		k.branch(i+1, value+int64(n)*it.value, rest, max(0, left-int64(n)*it.room))
		if k.steps <= 0 && n > 0 {
			// Out of steps: one bound covers all the fewer pods of this item, since it allows any number.
			k.upper = max(k.upper, upper)
			break
		}
	}
	k.current[it.shape] = 0
}
