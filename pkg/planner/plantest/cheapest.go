package plantest

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Cheapest returns the minimum number of pods that any plan leaves out, and the lowest price of such a plan. It is a dynamic program over the numbers
// of waiting pods of each class, for at most a few thousand such numbers. Of the rules, it keeps those that keep pods apart on machines. It ignores
// limits of pools.
func Cheapest(s planner.Snapshot) (left int, price planner.MicroUSD) {
	c := newCounting(s)
	b := launching{counting: c, tables: map[string][]outcome{}}
	for i, o := range s.Offerings {
		if o.Unavailable == nil && s.Pools[o.Pool].Closed == nil {
			b.machines = append(b.machines, machineLoads{int64(o.Price), o.Draws, c.largest(Empty(s, i), func(class planner.Class) []int { return class.Offerings }, i)})
		}
	}
	table := b.table(s.Stocks)
	for v, n := range s.Nodes {
		loads := c.largest(newSpot(s, n.Free, n.GPUs, n.Quotas), func(class planner.Class) []int { return class.Nodes }, v)
		next := slices.Clone(table)
		for d := range table {
			for _, l := range loads {
				next[d] = next[d].orLess(table[c.without(c.numbers[d], l)])
			}
		}
		table = next
	}
	return table[c.states-1].left, planner.MicroUSD(table[c.states-1].price)
}

// WaitingNumbers returns how many different numbers of waiting pods of each class there can be.
func WaitingNumbers(s planner.Snapshot) int {
	n := 1
	for _, c := range s.Classes {
		n *= len(c.Pods) + 1
	}
	return n
}

// outcome compares plans: fewer pods are left out, then the price is lower.
type outcome struct {
	left  int
	price int64
}

func (o outcome) plus(x outcome) outcome { return outcome{o.left + x.left, o.price + x.price} }

func (o outcome) orLess(x outcome) outcome {
	if x.left < o.left || x.left == o.left && x.price < o.price {
		return x
	}
	return o
}

// machineLoads are the largest loads of a machine at a price.
type machineLoads struct {
	price int64
	draws []planner.Draw
	loads [][]int
}

// launching finds the cheapest launches.
type launching struct {
	*counting
	machines []machineLoads
	// tables are by what is left of the stocks.
	tables map[string][]outcome
}

// table returns the cheapest launches for each number of waiting pods, given what is left of the stocks.
func (b *launching) table(left []planner.Stock) []outcome {
	key := fmt.Sprint(left)
	if known := b.tables[key]; known != nil {
		return known
	}
	table := make([]outcome, b.states)
	rests := make([][]outcome, len(b.machines)) // the tables after the launch of each machine
	for i, m := range b.machines {
		if rests[i] = table; len(m.draws) > 0 {
			rest := slices.Clone(left)
			planner.Take(rest, m.draws)
			rests[i] = nil
			if !slices.ContainsFunc(rest, func(x planner.Stock) bool { return x.Left < 0 }) {
				rests[i] = b.table(rest)
			}
		}
	}
	for d := 1; d < b.states; d++ {
		at := b.numbers[d]
		first := slices.IndexFunc(at, func(n int) bool { return n > 0 })
		table[d] = table[d-b.stride[first]].plus(outcome{left: 1})
		for i, m := range b.machines {
			for _, l := range m.loads {
				if l[first] > 0 && rests[i] != nil {
					table[d] = table[d].orLess(rests[i][b.without(at, l)].plus(outcome{price: m.price}))
				}
			}
		}
	}
	b.tables[key] = table
	return table
}

// counting numbers the numbers of waiting pods of each class in a mixed radix.
type counting struct {
	snapshot planner.Snapshot
	stride   []int
	states   int
	numbers  [][]int
}

func newCounting(s planner.Snapshot) *counting {
	c := &counting{snapshot: s, states: WaitingNumbers(s)}
	next := 1
	for _, class := range s.Classes {
		c.stride = append(c.stride, next)
		next *= len(class.Pods) + 1
	}
	for d := range c.states {
		at := make([]int, len(s.Classes))
		for k, class := range s.Classes {
			at[k] = d / c.stride[k] % (len(class.Pods) + 1)
		}
		c.numbers = append(c.numbers, at)
	}
	return c
}

// without returns the state in which the waiting pods of a load no longer wait.
func (c *counting) without(at, load []int) int {
	d := 0
	for k, n := range at {
		d += max(0, n-load[k]) * c.stride[k]
	}
	return d
}

// largest returns the loads of a machine to which no pod can be added. Whatever fits with more pods also fits with fewer.
func (c *counting) largest(empty Spot, admitted func(planner.Class) []int, machine int) [][]int {
	spots := map[int][]Spot{0: {empty}}
	var out [][]int
	for queue := []int{0}; len(queue) > 0; queue = queue[1:] {
		d, full := queue[0], true
		for k, class := range c.snapshot.Classes {
			if c.numbers[d][k] == len(class.Pods) || !slices.Contains(admitted(class), machine) {
				continue
			}
			next := d + c.stride[k]
			if _, known := spots[next]; !known {
				spots[next] = c.with(spots[d], k)
				if len(spots[next]) > 0 {
					queue = append(queue, next)
				}
			}
			full = full && len(spots[next]) == 0
		}
		if full {
			out = append(out, c.numbers[d])
		}
	}
	return out
}

// maxCounted is the maximum number of GPUs of a machine.
const maxCounted = 8

// with adds a pod to each of several spots, and returns different results.
func (c *counting) with(spots []Spot, class int) []Spot {
	var out []Spot
	known := map[[maxCounted]planner.GPU]bool{}
	for _, x := range spots {
		for _, y := range x.With(c.snapshot, class) {
			y.gpus = slices.SortedFunc(slices.Values(y.gpus), func(a, b planner.GPU) int {
				return cmp.Or(cmp.Compare(a.MemoryBytes, b.MemoryBytes), cmp.Compare(a.Replicas, b.Replicas))
			})
			var key [maxCounted]planner.GPU
			if copy(key[:], y.gpus); !known[key] {
				known[key] = true
				out = append(out, y)
			}
		}
	}
	return out
}

// CheaperUnderRules returns how many pods a plan can place under all rules of a snapshot, and the lowest price of such a plan. It considers only plans
// that place more pods than a given plan, or as many at a lower price, and returns the figures of the given plan if there are none. It is for about
// eight pods.
func CheaperUnderRules(s planner.Snapshot, than planner.Plan) (placed int, price planner.MicroUSD) {
	o := newRuled(s, func(planner.Class, string) bool { return true })
	o.most, o.price = len(PlacedPods(than)), than.Price
	left, least := Cheapest(s)
	o.enough = func() bool { return len(o.pods)-o.most == left && o.price == least }
	o.part(0, 0, 0)
	return o.most, o.price
}
