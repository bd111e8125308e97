package planner

import (
	"slices"
	"sync"
	"sync/atomic"
)

// pricer finds what a machine of one offer can hold that is worth most.
type pricer struct {
	knapsack *knapsack
	gpus     *gpuRelaxation
}

// priced is what pricing one offer found: its best load above the floor, others, an upper bound on the value of any, which is below the floor only where
// that was known at once, and a mixture that is
// worth that where no load is known to be.
type priced struct {
	value, upper int64
	loads        []load
	mixture      []float64
	steps        int
}

// care is how thoroughly an offer is priced: in how many steps its machine is searched, and, when parts > 0, that a machine with several GPUs is
// looked at GPU by GPU as well, with so many parts put together.
type care struct {
	steps int
	parts int
}

// rough is how offers are priced for a first bound, and for the last one when a clock ends the search.
var rough = care{steps: 20}

// maxPartedSteps bounds the search of a machine as a whole whose GPUs are bounded one by one: it hardly ever ends.
const maxPartedSteps = 1000

// priceCost is what pricing one offer costs beside its search, in steps.
const priceCost = 12

// combineCost is how many joins of loads count as one step.
const combineCost = 5

// price looks for loads worth more than the floor, as thoroughly as it is told, with a combination as scratch.
func (x *pricer) price(values []int64, demand load, care care, floor int64, c *combination) priced {
	upper := x.knapsack.price(values, demand)
	out := priced{upper: upper, steps: priceCost + len(x.knapsack.items)/10}
	if upper <= floor {
		return out
	}
	steps, parted := care.steps, false
	if x.gpus != nil && care.parts > 0 {
		u, cost := x.gpus.bound(values, demand, floor)
		out.steps += cost
		if u <= floor {
			out.upper = min(u, upper)
			return out
		}
		parted, upper = u < upper, min(upper, u)
		if x.gpus.combines {
			// The less there is between what is known and the bound, the less there is to combine.
			upper = min(upper, x.look(demand, glance, floor, true, &out))
			if least := max(floor, out.value); upper > least {
				upper = min(upper, x.combine(values, demand, care.parts, least, &out, c))
			}
		}
		steps = min(steps, maxPartedSteps)
	}
	if least := max(floor, out.value); upper > least {
		upper = min(upper, x.look(demand, steps, least, parted, &out))
	}
	out.upper = max(upper, out.value, floor)
	if care.parts > 0 && out.upper > max(out.value, floor) {
		if parted {
			x.gpus.mix()
			out.mixture = slices.Clone(x.gpus.mixture)
		} else {
			out.mixture = x.knapsack.mixture()
		}
		scale(out.mixture, values, out.upper)
	}
	return out
}

// glance is the steps of a first search of a machine whose GPUs are looked at one by one.
const glance = 20

// look searches the machine as a whole for a load worth more than the floor, and makes whole what the relaxation buys of its GPUs when they are looked at one by one.
func (x *pricer) look(demand load, steps int, floor int64, parted bool, out *priced) (upper int64) {
	value, upper := x.knapsack.search(demand, steps, floor)
	out.steps += steps - max(0, x.knapsack.steps)
	if parted && upper > max(value, floor) {
		x.gpus.mix()
		x.gpus.round()
		x.knapsack.build(func(shape int) int32 { return x.gpus.rounded[shape] })
		if x.knapsack.value > floor {
			value = x.knapsack.value
		}
	}
	if value > floor {
		out.value = value
		out.loads = append(out.loads, slices.Clone(x.knapsack.best))
		for _, l := range x.knapsack.more[keepMore-x.knapsack.others:] {
			out.loads = append(out.loads, slices.Clone(l))
		}
	}
	return upper
}

// combine puts loads together of loads of single GPUs, and returns an upper bound on the value of any.
func (x *pricer) combine(values []int64, demand load, parts int, floor int64, out *priced, c *combination) (upper int64) {
	loads, upper := c.combine(x.gpus, values, demand, floor, parts)
	out.steps += c.steps / combineCost
	for _, l := range loads {
		l = l.within(demand)
		if v := worth(values, l); v > floor && x.knapsack.rest.fill(x.knapsack.problem, x.knapsack.capacity, l) {
			out.value = max(out.value, v)
			out.loads = append(out.loads, l)
		}
	}
	return upper
}

// mixture is what the relaxation of the machine holds.
func (k *knapsack) mixture() []float64 {
	out := make([]float64, len(k.current))
	for i := range k.items {
		out[k.items[i].shape] = k.relaxed.amount(i)
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

// oracle prices all offers of a problem. What it found last stays until it prices again.
type oracle struct {
	machines []pricer // by offer
	found    []priced
	// combinations are scratch of the two workers.
	combinations [2]combination
}

// newOracle is the oracle of a problem.
func newOracle(p *problem) *oracle {
	o := &oracle{}
	for t := range p.offers {
		k := newKnapsack(p, &p.offers[t].capacity)
		o.machines = append(o.machines, pricer{k, newGPURelaxation(p, k)})
	}
	return o
}

// price prices all offers, each with the floor that it is given. A second worker takes some of the offers, if it comes in time: what it has not begun
// when the others are priced is not waited for. What is found depends on neither, and stays until offers are priced again. Once the search is to end, the bounds of what is left are the quick ones.
func (o *oracle) price(e *effort, values []int64, demand load, care care, floor func(t int) int64) []priced {
	o.found = slices.Grow(o.found[:0], len(o.machines))[:len(o.machines)]
	clear(o.found)
	out := o.found
	var next atomic.Int64
	var rest sync.WaitGroup
	rest.Add(len(out))
	work := func(c *combination) {
		for t := int(next.Add(1)) - 1; t < len(out); t = int(next.Add(1)) - 1 {
			care := care
			if care.parts > 0 && e.stopped() {
				care = rough
			}
			out[t] = o.machines[t].price(values, demand, care, floor(t), c)
			rest.Done()
		}
	}
	go work(&o.combinations[1])
	work(&o.combinations[0])
	rest.Wait()
	for i := range out {
		e.spend(int64(out[i].steps))
	}
	return out
}
