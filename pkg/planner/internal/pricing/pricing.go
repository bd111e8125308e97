package pricing

import (
	"slices"
	"sync"
	"sync/atomic"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Machine prices one offer or node: it finds the most valuable load of a machine.
type Machine struct {
	Knapsack *Knapsack
	GPUs     *gpuRelaxation
	// unequal is nil unless the machine has several GPUs with different room.
	unequal *unequalGPUs
}

// Priced is the result of pricing one machine: its best load above the floor, other loads, and an upper bound on the value of any load. The bound is
// below the floor only if that was known without a search. If no known load attains the bound, Mixture is a fractional load that does.
type Priced struct {
	Value, Upper int64
	Loads        []pack.Load
	Mixture      []float64
	steps        int
}

// Effort is how thoroughly an offer is priced. Steps limits the search of its machine. If Parts > 0, machines with several GPUs are also decomposed by GPU,
// and Parts limits the number of combined parts.
type Effort struct {
	Steps int
	Parts int
}

// Rough is the effort for a first bound, and for the last one if a clock ends the search.
var Rough = Effort{Steps: 20}

// maxPartedSteps bounds the search of a whole machine whose GPUs are bounded separately. Such a search rarely ends by itself.
const maxPartedSteps = 1000

// PriceCost is the cost of pricing one offer without its search, in steps.
const PriceCost = 12

// combineCost is the number of joins of loads that count as one step.
const combineCost = 5

// price searches for loads worth more than the floor, with the given effort. c is scratch space.
func (x *Machine) price(values []int64, demand pack.Load, limit Effort, floor int64, c *Combination) Priced {
	upper := x.Knapsack.Price(values, demand)
	out := Priced{Upper: upper, steps: PriceCost + len(x.Knapsack.items)/10}
	if upper <= floor {
		return out
	}
	if x.unequal != nil && limit.Parts > 0 {
		u, cost := x.unequal.bound(values, demand)
		out.steps += cost
		if upper = min(upper, u); upper <= floor {
			out.Upper = upper
			return out
		}
	}
	steps, parted := limit.Steps, false
	if x.GPUs != nil && limit.Parts > 0 {
		u, cost := x.GPUs.Bound(values, demand, floor)
		out.steps += cost
		if u <= floor {
			out.Upper = min(u, upper)
			return out
		}
		parted, upper = u < upper, min(upper, u)
		if x.GPUs.Combines {
			// The smaller the gap between the known value and the bound, the less there is to combine.
			upper = min(upper, x.look(demand, firstSteps, floor, true, &out))
			if least := max(floor, out.Value); upper > least {
				upper = min(upper, x.Combine(values, demand, limit.Parts, least, &out, c))
			}
		}
		steps = min(steps, maxPartedSteps)
	}
	if least := max(floor, out.Value); upper > least {
		upper = min(upper, x.look(demand, steps, least, parted, &out))
	}
	out.Upper = max(upper, out.Value, floor)
	if limit.Parts > 0 && out.Upper > max(out.Value, floor) {
		if parted {
			x.GPUs.mix()
			out.Mixture = slices.Clone(x.GPUs.mixture)
		} else {
			out.Mixture = x.Knapsack.mixture()
		}
		scale(out.Mixture, values, out.Upper)
	}
	return out
}

// firstSteps is the number of steps of a first search of a machine whose GPUs are decomposed.
const firstSteps = 20

// look searches the whole machine for a load worth more than the floor. If the machine is decomposed by GPU, it also rounds the solution of that relaxation.
func (x *Machine) look(demand pack.Load, steps int, floor int64, parted bool, out *Priced) (upper int64) {
	value, upper := x.Knapsack.Search(demand, steps, floor)
	out.steps += steps - max(0, x.Knapsack.Steps)
	if parted && upper > max(value, floor) {
		x.GPUs.mix()
		x.GPUs.round()
		x.Knapsack.build(func(shape int) int32 { return x.GPUs.rounded[shape] })
		if x.Knapsack.value > floor {
			value = x.Knapsack.value
		}
	}
	if value > floor {
		out.Value = value
		out.Loads = append(out.Loads, slices.Clone(x.Knapsack.Best))
		for _, l := range x.Knapsack.more[keepMore-x.Knapsack.others:] {
			out.Loads = append(out.Loads, slices.Clone(l))
		}
	}
	return upper
}

// Combine combines loads of single GPUs to loads of the machine, and returns an upper bound on the value of any load.
func (x *Machine) Combine(values []int64, demand pack.Load, parts int, floor int64, out *Priced, c *Combination) (upper int64) {
	loads, upper := c.combine(x.GPUs, values, demand, floor, parts)
	out.steps += c.steps / combineCost
	for _, l := range loads {
		l = l.Within(demand)
		if v := pack.Worth(values, l); v > floor && x.Knapsack.rest.Fill(x.Knapsack.problem, x.Knapsack.capacity, l) {
			out.Value = max(out.Value, v)
			out.Loads = append(out.Loads, l)
		}
	}
	return upper
}

// mixture returns the solution of the machine's relaxation.
func (k *Knapsack) mixture() []float64 {
	out := make([]float64, len(k.current))
	for i := range k.items {
		out[k.items[i].shape] = k.relaxed.Amount(i)
	}
	return out
}

// scale reduces a mixture so that it is worth at most to.
func scale(mixture []float64, values []int64, to int64) {
	value := 0.0
	for k, n := range mixture {
		value += float64(n * float64(values[k]))
	}
	if value > float64(to) {
		f := float64(to) / value
		for k := range mixture {
			mixture[k] = float64(mixture[k] * f)
		}
	}
}

// Oracle prices several machines of a problem. Its results stay valid until it prices again.
type Oracle struct {
	Machines []Machine
	// first is, by machine, the first one of the same capacity, whose knapsack it shares. It is nil if all differ.
	first []int
	found []Priced
	// combinations are scratch space of the two workers.
	combinations [2]Combination
}

// NewOracle returns the oracle of machines with the given capacities. If offers draw from stocks, the same machine is there at several prices, and is searched once.
func NewOracle(p *pack.Problem, machines []*pack.Capacity) *Oracle {
	o := &Oracle{}
	byFree := map[amount.Vector][]int{}
	for t, c := range machines {
		if p.Stocked {
			same := byFree[c.Free]
			i := slices.IndexFunc(same, func(s int) bool { return machines[s].Equals(c) })
			if i >= 0 {
				o.first, o.Machines = append(o.first, same[i]), append(o.Machines, o.Machines[same[i]])
				continue
			}
			o.first, byFree[c.Free] = append(o.first, t), append(same, t)
		}
		k := NewKnapsack(p, c)
		o.Machines = append(o.Machines, Machine{k, NewGPURelaxation(p, k), newUnequalGPUs(p, k)})
	}
	return o
}

// Price prices all machines, each with its own floor. A second worker prices some of them if it starts in time. The results do not depend on that, and are
// valid until the next call. Once the search has to end, the remaining machines get only a rough bound.
func (o *Oracle) Price(e *effort.Budget, values []int64, demand pack.Load, limit Effort, floor func(t int) int64) []Priced {
	o.found = slices.Grow(o.found[:0], len(o.Machines))[:len(o.Machines)]
	clear(o.found)
	out := o.found
	if len(out) == 0 {
		return out
	}
	floors := make([]int64, len(out))
	for t := range floors {
		floors[t] = floor(t)
	}
	lowest := slices.Clone(floors)
	for t, first := range o.first {
		lowest[first] = min(lowest[first], floors[t])
	}
	var next atomic.Int64
	var rest sync.WaitGroup
	rest.Add(len(out))
	work := func(c *Combination) {
		for t := int(next.Add(1)) - 1; t < len(out); t = int(next.Add(1)) - 1 {
			limit := limit
			if limit.Parts > 0 && e.Stopped() {
				limit = Rough
			}
			if o.first == nil || o.first[t] == t {
				out[t] = o.Machines[t].price(values, demand, limit, lowest[t], c)
			}
			rest.Done()
		}
	}
	go work(&o.combinations[1])
	work(&o.combinations[0])
	rest.Wait()
	for i := range out {
		e.Spend(int64(out[i].steps))
	}
	for t, first := range slices.Backward(o.first) { // The first of each capacity comes last.
		if out[t] = out[first]; out[t].Value <= floors[t] {
			out[t].Value, out[t].Loads = 0, nil
		}
	}
	return out
}
