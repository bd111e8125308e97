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

// priceCost is what pricing one offer costs beside its search, in steps.
const priceCost = 12

// price looks for loads worth more than the floor, with the relaxation of the GPUs when thorough.
func (x *pricer) price(values []int64, demand load, steps int, floor int64, thorough bool) priced {
	root := x.knapsack.price(values, demand)
	if root <= floor {
		return priced{upper: floor, steps: priceCost}
	}
	value, upper := x.search(demand, steps, floor)
	out := priced{value: value, steps: priceCost + steps - max(0, x.steps)}
	if upper > root {
		upper = root
	}
	out.upper = upper
	if x.gpus != nil && thorough && upper > max(value, floor) {
		u, more := x.gpus.bound(values, demand, floor)
		out.steps += more
		x.gpus.mix()
		x.build(func(it *item) int32 { return int32(x.gpus.mixture[it.shape]) })
		if x.value > floor {
			out.value = x.value
		}
		if u = max(u, floor); u < upper {
			out.upper, x.mixed = u, u > out.value
			copy(x.mixture, x.gpus.mixture)
		}
	}
	if out.value > 0 {
		out.loads = append(out.loads, slices.Clone(x.best))
		out.loads = append(out.loads, x.more...)
	}
	if x.mixed && out.upper > floor {
		out.mixture = slices.Clone(x.mixture)
	}
	return out
}

// priceAll prices all offers, each with the floor that it is given. The offers are parted among two workers, and what is found
// depends on neither.
func (m *mixer) priceAll(values []int64, demand load, steps int, floor func(t int) int64, thorough bool) []priced {
	out := make([]priced, len(m.offered))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for t := int(next.Add(1)) - 1; t < len(out); t = int(next.Add(1)) - 1 {
				out[t] = m.offered[t].price(values, demand, steps, floor(t), thorough)
			}
		})
	}
	workers.Wait()
	for i := range out {
		m.effort.spend(int64(out[i].steps))
	}
	return out
}
