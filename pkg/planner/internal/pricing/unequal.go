package pricing

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// unequalGPUs bounds the value of loads of a machine whose GPUs have different room left, as on existing nodes. The resources that the GPUs share are
// charged at the duals of the machine's own relaxation, and each GPU is a separate knapsack (one step of a Lagrangian relaxation). The machine's
// knapsack has only their sum.
type unequalGPUs struct {
	whole   *Knapsack
	each    []*Knapsack // by different GPU
	count   []int64
	reduced []int64
}

// unequalSteps bounds the search of one GPU.
const unequalSteps = 60

// newUnequalGPUs returns nil for machines with one GPU or equal ones.
func newUnequalGPUs(p *pack.Problem, k *Knapsack) *unequalGPUs {
	gpus := k.capacity.Gpus
	if !k.capacity.Binned || len(gpus) < 2 || gpus[0] == gpus[len(gpus)-1] {
		return nil
	}
	u := &unequalGPUs{whole: k, reduced: make([]int64, len(p.Shapes))}
	var known []planner.GPU
	for _, g := range gpus {
		if i := slices.Index(known, g); i >= 0 {
			u.count[i]++
			continue
		}
		one := &pack.Capacity{Free: k.capacity.Free, Quotas: k.capacity.Quotas, Fits: make([]int32, len(p.Shapes))}
		one.Free[amount.Replicas], one.Free[amount.GPUMemory] = g.Replicas, g.MemoryBytes
		for i := range k.items {
			if it := &k.items[i]; it.of.States() {
				one.Fits[it.shape] = one.Alone(it.of, it.fits)
			}
		}
		known, u.each, u.count = append(known, g), append(u.each, NewKnapsack(p, one)), append(u.count, 1)
	}
	return u
}

// bound returns an upper bound on the value of any load, and its cost in steps. The machine's own knapsack must have been priced with the same worths
// before.
func (u *unequalGPUs) bound(values []int64, demand pack.Load) (upper int64, steps int) {
	var prices [amount.Dims]int64 // of all that the machine has
	for d, dual := range u.whole.relaxed.Duals() {
		if d != amount.Replicas && d != amount.GPUMemory {
			prices[d] = int64(max(0, dual))
			upper = amount.Saturating(upper, prices[d])
		}
	}
	clear(u.reduced)
	for i := range u.whole.items {
		it := &u.whole.items[i]
		left := values[it.shape]
		for d, price := range prices {
			left -= amount.MulDiv(price, it.scaled[d], unit)
		}
		u.reduced[it.shape] = max(0, left)
		if !it.of.States() {
			upper = amount.Saturating(upper, amount.MulDiv(u.reduced[it.shape], int64(min(it.fits, demand[it.shape])), 1))
		}
	}
	for i, k := range u.each {
		root := k.Price(u.reduced, demand)
		_, most := k.Search(demand, unequalSteps, 0)
		upper = amount.Saturating(upper, amount.MulDiv(min(root, most), u.count[i], 1))
		steps += PriceCost + unequalSteps - max(0, k.Steps)
	}
	return upper, steps
}
