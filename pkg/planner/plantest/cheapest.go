package plantest

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Cheapest returns the minimum number of pods that any plan leaves out, and the lowest price of such a plan. It is a dynamic program over the numbers
// of waiting pods of each class, for at most a few thousand such numbers, and over what launches leave of stocks and of the limits of pools. Of the rules, it keeps those
// that keep pods apart on machines.
func Cheapest(s planner.Snapshot) (left int, price planner.MicroUSD) {
	c := newCounting(s)
	b := cheapest{counting: c, stages: map[string]*stage{}}
	for i, o := range s.Offerings {
		if o.Unavailable == nil && s.Pools[o.Pool].Closed == nil {
			b.machines = append(b.machines, machineLoads{o, c.largest(Empty(s, i), func(class planner.Class) []int { return class.Offerings }, i)})
		}
	}
	all := supply{stocks: s.Stocks}
	for _, p := range s.Pools {
		all.limits = append(all.limits, p.Remaining)
	}
	least := b.stage(all).least
	for v, n := range s.Nodes {
		loads := c.largest(newSpot(s, n.Free, n.GPUs, n.Quotas), func(class planner.Class) []int { return class.Nodes }, v)
		least = c.beside(loads, least)
	}
	best := least(c.states - 1)
	return best.left, planner.MicroUSD(best.price)
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

// machineLoads are the largest loads of the machines of an offering.
type machineLoads struct {
	planner.Offering
	loads [][]int
}

// supply is what may still be launched.
type supply struct {
	stocks []planner.Stock
	limits []planner.Physical // by pool
}

// without returns what may still be launched after a machine, and whether that may be.
func (x supply) without(o planner.Offering) (supply, bool) {
	rest := supply{slices.Clone(x.stocks), slices.Clone(x.limits)}
	planner.Take(rest.stocks, o.Draws)
	short := slices.ContainsFunc(rest.stocks, func(s planner.Stock) bool { return s.Left < 0 })
	return rest, !short && count(&rest.limits[o.Pool], o.Physical)
}

// cheapest finds the cheapest launches.
type cheapest struct {
	*counting
	machines []machineLoads
	// stages are by what may still be launched.
	stages map[string]*stage
}

// stage is a point at which so much may still be launched.
type stage struct {
	supply
	// after are the stages after the launch of each machine, or nil if it may not be launched. They are not set before they are needed.
	after []*stage
	least func(waiting int) outcome
}

func (b *cheapest) stage(left supply) *stage {
	key := fmt.Sprint(left)
	if b.stages[key] == nil {
		b.stages[key] = &stage{supply: left}
		b.stages[key].least = b.launches(b.stages[key])
	}
	return b.stages[key]
}

// launches returns a function of the number of the waiting pods that returns the cheapest launches for them.
func (b *cheapest) launches(at *stage) func(waiting int) outcome {
	return b.once(func(d int) outcome {
		first := slices.IndexFunc(b.numbers[d], func(n int) bool { return n > 0 })
		if first < 0 {
			return outcome{}
		}
		if at.after == nil {
			for _, m := range b.machines {
				var after *stage
				if rest, ok := at.without(m.Offering); ok {
					after = b.stage(rest)
				}
				at.after = append(at.after, after)
			}
		}
		best := at.least(d - b.stride[first]).plus(outcome{left: 1})
		for i, m := range b.machines {
			for _, l := range m.loads {
				if l[first] > 0 && at.after[i] != nil {
					best = best.orLess(at.after[i].least(b.without(b.numbers[d], l)).plus(outcome{price: int64(m.Price)}))
				}
			}
		}
		return best
	})
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

// once returns the function, which is called at most once for each number.
func (c *counting) once(least func(waiting int) outcome) func(waiting int) outcome {
	known := make([]*outcome, c.states)
	return func(d int) outcome {
		if known[d] == nil {
			known[d] = new(least(d))
		}
		return *known[d]
	}
}

// beside returns what least does, with a node that takes one of several loads first.
func (c *counting) beside(loads [][]int, least func(waiting int) outcome) func(waiting int) outcome {
	return c.once(func(d int) outcome {
		best := least(d)
		for _, l := range loads {
			best = best.orLess(least(c.without(c.numbers[d], l)))
		}
		return best
	})
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
	o := newOracle(s, func(planner.Class, string) bool { return true })
	o.most, o.price = len(PlacedPods(than)), than.Price
	left, least := Cheapest(s)
	o.enough = func() bool { return len(o.pods)-o.most == left && o.price == least }
	o.part(0, 0, 0)
	return o.most, o.price
}
