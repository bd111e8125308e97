package planner

import (
	"slices"
	"sync"
	"sync/atomic"
)

// pricer finds what a machine of one offer can hold that is worth most.
type pricer struct {
	*knapsack
	gpus *gpuRelaxation
}

// priced is what pricing one offer found: its best load above the floor, others, an upper bound on the value of any, and a mixture that is
// worth that where no load is known to be.
type priced struct {
	value, upper int64
	loads        []load
	mixture      []float64
	steps        int
}

// care is how thoroughly an offer is priced.
type care int

const (
	// plain is by the knapsack of the machine alone.
	plain care = iota
	// parting bounds the GPUs one by one as well.
	parting
	// cutting searches the machine with what that says of its GPUs. It is slow, finds fewer loads, and has the best bounds.
	cutting
)

// maxPartedSteps bounds the search of a machine whose GPUs are bounded one by one: without the cut it hardly ever ends.
const maxPartedSteps = 1000

// priceCost is what pricing one offer costs beside its search, in steps.
const priceCost = 12

// price looks for loads worth more than the floor, as thoroughly as it is told.
func (x *pricer) price(values []int64, demand load, steps int, floor int64, care care) priced {
	upper := x.knapsack.price(values, demand)
	out := priced{upper: floor, steps: priceCost + len(x.items)/10}
	if upper <= floor {
		return out
	}
	parted := false
	if x.gpus != nil && care > plain {
		u, cost := x.gpus.bound(values, demand, floor)
		out.steps += cost
		if u <= floor {
			return out
		}
		if u < upper {
			parted, upper = true, u
			if care == cutting {
				defer x.uncut()
				upper = min(u, x.cut(x.gpus.kept, x.gpus.keptMost, &x.gpus.keptPaid, demand))
			} else {
				steps = min(steps, maxPartedSteps)
			}
		}
	}
	value, u := x.search(demand, steps, floor)
	out.steps += steps - max(0, x.steps)
	out.upper = min(upper, u)
	if x.gpus != nil && care > plain && out.upper > max(value, floor) {
		x.gpus.mix()
		x.gpus.round()
		x.build(func(shape int) int32 { return x.gpus.rounded[shape] })
		if x.value > floor {
			value = x.value
		}
	}
	if out.value = value; value > 0 {
		out.loads = append(out.loads, slices.Clone(x.best))
		out.loads = append(out.loads, x.more...)
	}
	if care > plain && out.upper > max(value, floor) {
		if parted {
			out.mixture = slices.Clone(x.gpus.mixture)
		} else {
			out.mixture = x.mixture()
		}
		scale(out.mixture, values, out.upper)
	}
	return out
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

// priceAll prices all offers, each with the floor that it is given. The offers are parted among two workers, and what is found
// depends on neither.
func (m *mixer) priceAll(values []int64, demand load, steps int, floor func(t int) int64, care care) []priced {
	out := make([]priced, len(m.offered))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for t := int(next.Add(1)) - 1; t < len(out); t = int(next.Add(1)) - 1 {
				out[t] = m.offered[t].price(values, demand, steps, floor(t), care)
			}
		})
	}
	workers.Wait()
	for i := range out {
		m.effort.spend(int64(out[i].steps))
	}
	return out
}
