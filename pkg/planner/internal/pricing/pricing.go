package pricing

import (
	"slices"
	"sync"
	"sync/atomic"

	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Machine finds what a machine of one offer can hold that is worth most.
type Machine struct {
	Knapsack *Knapsack
	GPUs     *gpuRelaxation
}

// Priced is what pricing one offer found: its best load above the floor, others, an upper bound on the value of any, which is below the floor only where
// that was known at once, and a mixture that is
// worth that where no load is known to be.
type Priced struct {
	Value, Upper int64
	Loads        []pack.Load
	Mixture      []float64
	steps        int
}

// Effort is how thoroughly an offer is priced: in how many steps its machine is searched, and, when parts > 0, that a machine with several GPUs is
// looked at GPU by GPU as well, with so many parts put together.
type Effort struct {
	Steps int
	Parts int
}

// Rough is how offers are priced for a first bound, and for the last one when a clock ends the search.
var Rough = Effort{Steps: 20}

// maxPartedSteps bounds the search of a machine as a whole whose GPUs are bounded one by one: it hardly ever ends.
const maxPartedSteps = 1000

// PriceCost is what pricing one offer costs beside its search, in steps.
const PriceCost = 12

// combineCost is how many joins of loads count as one step.
const combineCost = 5

// price looks for loads worth more than the floor, as thoroughly as it is told, with a combination as scratch.
func (x *Machine) price(values []int64, demand pack.Load, care Effort, floor int64, c *Combination) Priced {
	upper := x.Knapsack.Price(values, demand)
	out := Priced{Upper: upper, steps: PriceCost + len(x.Knapsack.items)/10}
	if upper <= floor {
		return out
	}
	steps, parted := care.Steps, false
	if x.GPUs != nil && care.Parts > 0 {
		u, cost := x.GPUs.Bound(values, demand, floor)
		out.steps += cost
		if u <= floor {
			out.Upper = min(u, upper)
			return out
		}
		parted, upper = u < upper, min(upper, u)
		if x.GPUs.Combines {
			// The less there is between what is known and the bound, the less there is to combine.
			upper = min(upper, x.look(demand, glance, floor, true, &out))
			if least := max(floor, out.Value); upper > least {
				upper = min(upper, x.Combine(values, demand, care.Parts, least, &out, c))
			}
		}
		steps = min(steps, maxPartedSteps)
	}
	if least := max(floor, out.Value); upper > least {
		upper = min(upper, x.look(demand, steps, least, parted, &out))
	}
	out.Upper = max(upper, out.Value, floor)
	if care.Parts > 0 && out.Upper > max(out.Value, floor) {
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

// glance is the steps of a first search of a machine whose GPUs are looked at one by one.
const glance = 20

// look searches the machine as a whole for a load worth more than the floor, and makes whole what the relaxation buys of its GPUs when they are looked at one by one.
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

// Combine puts loads together of loads of single GPUs, and returns an upper bound on the value of any.
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

// mixture is what the relaxation of the machine holds.
func (k *Knapsack) mixture() []float64 {
	out := make([]float64, len(k.current))
	for i := range k.items {
		out[k.items[i].shape] = k.relaxed.Amount(i)
	}
	return out
}

// scale makes a mixture worth no more than so much.
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

// Oracle prices all offers of a problem. What it found last stays until it prices again.
type Oracle struct {
	Machines []Machine // by offer
	found    []Priced
	// combinations are scratch of the two workers.
	combinations [2]Combination
}

// NewOracle is the oracle of a problem.
func NewOracle(p *pack.Problem) *Oracle {
	o := &Oracle{}
	for t := range p.Offers {
		k := NewKnapsack(p, &p.Offers[t].Capacity)
		o.Machines = append(o.Machines, Machine{k, NewGPURelaxation(p, k)})
	}
	return o
}

// Price prices all offers, each with the floor that it is given. A second worker takes some of the offers, if it comes in time: what it has not begun
// when the others are priced is not waited for. What is found depends on neither, and stays until offers are priced again. Once the search is to end, the bounds of what is left are the quick ones.
func (o *Oracle) Price(e *effort.Budget, values []int64, demand pack.Load, care Effort, floor func(t int) int64) []Priced {
	o.found = slices.Grow(o.found[:0], len(o.Machines))[:len(o.Machines)]
	clear(o.found)
	out := o.found
	var next atomic.Int64
	var rest sync.WaitGroup
	rest.Add(len(out))
	work := func(c *Combination) {
		for t := int(next.Add(1)) - 1; t < len(out); t = int(next.Add(1)) - 1 {
			care := care
			if care.Parts > 0 && e.Stopped() {
				care = Rough
			}
			out[t] = o.Machines[t].price(values, demand, care, floor(t), c)
			rest.Done()
		}
	}
	go work(&o.combinations[1])
	work(&o.combinations[0])
	rest.Wait()
	for i := range out {
		e.Spend(int64(out[i].steps))
	}
	return out
}
