package pricing

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/lp"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// gpuRelaxation bounds the value of loads of a machine with several equal GPUs and pods that request device memory. It is a Lagrangian decomposition:
// the resources that the GPUs share are charged at prices, and each GPU becomes a separate knapsack with few, integral loads.
//
// The machine's own knapsack has the sum of the GPUs instead, but does not divide CPU and memory. Neither bound is always better.
type gpuRelaxation struct {
	problem *pack.Problem
	whole   *Knapsack
	count   int
	one     *Knapsack
	relaxed lp.Simplex
	// demand is what the rows of the relaxation are for. There are rows for the shared resources, one for the number of GPUs, and one for each shape with
	// fewer pods than the GPUs hold. rowOf has the rows of shapes, or -1 for shapes without one.
	demand pack.Load
	rowOf  []int32
	limits []float64 // by row
	// loose are the items of the machine that request no device memory. The first columns of the relaxation are theirs, and the others are patterns.
	loose    []*item
	patterns []pack.Load
	reduced  []int64
	paid     [amount.Dims]int64
	scarcity []int64
	mixture  []float64
	rounded  pack.Load
	// tried are the prices of the last call of Bound.
	tried []plane
	// Combines reports whether [Combination] can be used: all pods request device memory, and the number of GPUs is a power of two.
	Combines bool
}

// Limits on the search for patterns: rounds in one call, how many patterns are kept between calls, and steps of each search.
const (
	patternRounds = 12
	maxPatterns   = 150
	patternSteps  = 400
)

// NewGPURelaxation returns a relaxation, or nil for machines for which it is not useful.
func NewGPURelaxation(p *pack.Problem, k *Knapsack) *gpuRelaxation {
	if !k.capacity.Binned || len(k.capacity.Gpus) < 2 || k.capacity.Gpus[0] != k.capacity.Gpus[len(k.capacity.Gpus)-1] {
		return nil
	}
	n := len(p.Shapes)
	g := &gpuRelaxation{problem: p, whole: k, count: len(k.capacity.Gpus), reduced: make([]int64, n), scarcity: make([]int64, n), rounded: make(pack.Load, n), mixture: make([]float64, n)}
	one := &pack.Capacity{Free: k.capacity.Free, Quotas: k.capacity.Quotas, Fits: make([]int32, n)}
	one.Free[amount.Replicas], one.Free[amount.GPUMemory] = k.capacity.Gpus[0].Replicas, k.capacity.Gpus[0].MemoryBytes
	g.rowOf = make([]int32, n)
	for i := range k.items {
		it := &k.items[i]
		if it.of.States() {
			one.Fits[it.shape] = one.Alone(it.of, it.fits)
			continue
		}
		g.loose = append(g.loose, it)
	}
	g.one = NewKnapsack(p, one)
	// The resources that all GPUs share are charged by prices and left out here. Many items are then equal, and few remain.
	for i := range g.one.items {
		it := &g.one.items[i]
		for d := range it.request {
			if d != amount.Replicas && d != amount.GPUMemory {
				it.request[d], it.scaled[d] = 0, 0
			}
		}
		it.filled = g.one.capacity.Free.Fit(it.request, math.MaxInt32)
		it.fits = min(it.filled, int32(len(it.of.Pods)))
	}
	g.one.relax()
	g.Combines = len(g.loose) == 0 && bits.OnesCount(uint(g.count)) == 1
	return g
}

// begin sets the rows of the relaxation for a demand.
func (g *gpuRelaxation) begin(demand pack.Load) {
	g.demand = append(g.demand[:0], demand...)
	g.limits = g.limits[:0]
	for range amount.Dims {
		g.limits = append(g.limits, 1)
	}
	g.limits = append(g.limits, float64(g.count))
	for k := range g.rowOf {
		g.rowOf[k] = -1
	}
	for i := range g.whole.items {
		it := &g.whole.items[i]
		if most := min(it.filled, int32(g.count)*g.one.capacity.Fits[it.shape]); demand[it.shape] < most || !it.of.States() {
			g.rowOf[it.shape] = int32(len(g.limits))
			g.limits = append(g.limits, float64(min(it.fits, demand[it.shape])))
		}
	}
	g.relaxed.Reset()
	for _, limit := range g.limits {
		g.relaxed.AddRow(-limit, nil, -1)
	}
	for _, it := range g.loose {
		one := make(pack.Load, len(demand))
		one[it.shape] = 1
		g.addColumn(one, false)
	}
	for _, l := range g.patterns {
		g.addColumn(l, true)
	}
}

// addColumn adds a column with a load's use of the shared resources (not device memory) and of scarce pods.
func (g *gpuRelaxation) addColumn(l pack.Load, pattern bool) {
	var rows []int32
	var uses []float64
	var use [amount.Dims]float64
	for i := range g.whole.items {
		it := &g.whole.items[i]
		n := float64(l[it.shape])
		if n == 0 {
			continue
		}
		for d, r := range it.request {
			if r > 0 && d != amount.GPUMemory {
				use[d] += float64(float64(float64(r)/float64(g.whole.capacity.Free[d])) * n)
			}
		}
		if r := g.rowOf[it.shape]; r >= 0 {
			rows, uses = append(rows, r), append(uses, -n)
		}
	}
	for d, u := range use {
		if u > 0 {
			rows, uses = append(rows, int32(d)), append(uses, -u)
		}
	}
	if pattern {
		rows, uses = append(rows, amount.Dims), append(uses, -1)
	}
	g.relaxed.AddColumn(0, math.Inf(1), rows, uses)
}

// Bound returns an upper bound on the value of any load, at the worths that the machine's own knapsack was given last. It ends once the bound is at
// most the floor. Afterwards, mix sets a mixture whose worth is about the bound.
func (g *gpuRelaxation) Bound(values []int64, demand pack.Load, floor int64) (upper int64, steps int) {
	g.forget()
	if !slices.Equal(g.demand, demand) {
		g.begin(demand)
	}
	for i, it := range g.loose {
		g.relaxed.SetPrice(i, -float64(values[it.shape]))
	}
	for i, l := range g.patterns {
		g.relaxed.SetPrice(len(g.loose)+i, -float64(pack.Worth(values, l)))
	}
	upper = -1
	g.tried = g.tried[:0]
	for range patternRounds {
		steps += 4
		g.relaxed.Solve(relaxSteps+2*len(g.limits), nil)
		u, most, pattern := g.relax(values, demand, &steps)
		g.tried = append(g.tried, plane{g.paid, slices.Clone(g.scarcity), most, u})
		if upper < 0 || u < upper {
			upper = u
		}
		if upper <= floor || pattern == nil {
			break
		}
		g.add(values, pattern)
	}
	return upper, steps
}

// relax bounds the value at the current prices. It also returns an upper bound on the value of one GPU at these prices, and the most valuable pattern of one
// GPU. The pattern is nil if none would improve the relaxation.
func (g *gpuRelaxation) relax(values []int64, demand pack.Load, steps *int) (upper, most int64, pattern pack.Load) {
	paid := &g.paid
	*paid = [amount.Dims]int64{}
	for d := range amount.Dims {
		if d < amount.GPUMemory {
			paid[d] = int64(min(max(0, g.relaxed.Duals()[d]), 1<<60))
			upper = amount.Saturating(upper, paid[d])
		}
	}
	clear(g.scarcity)
	for k, r := range g.rowOf {
		if r >= 0 {
			g.scarcity[k] = int64(min(max(0, g.relaxed.Duals()[r]), 1<<60))
			upper = amount.Saturating(upper, amount.MulDiv(g.scarcity[k], int64(g.limits[r]), 1))
		}
	}
	for i := range g.whole.items {
		it := &g.whole.items[i]
		v := values[it.shape] - g.scarcity[it.shape]
		for d, w := range it.scaled {
			if paid[d] > 0 && w > 0 {
				v -= amount.MulDiv(paid[d], w, unit)
			}
		}
		v = max(0, v)
		g.reduced[it.shape] = v
		if !it.of.States() {
			upper = amount.Saturating(upper, v*int64(min(it.fits, demand[it.shape])))
			g.reduced[it.shape] = 0
		}
	}
	floor := int64(max(0, g.relaxed.Duals()[amount.Dims]))
	g.one.Price(g.reduced, demand)
	v, most := g.one.Search(demand, patternSteps, floor)
	*steps += patternSteps - g.one.Steps
	upper = amount.Saturating(upper, amount.MulDiv(most, int64(g.count), 1))
	if v <= floor+floor/10_000 {
		return upper, most, nil
	}
	return upper, most, g.one.Best
}

func (g *gpuRelaxation) add(values []int64, pattern pack.Load) {
	l := slices.Clone(pattern)
	g.patterns = append(g.patterns, l)
	g.addColumn(l, true)
	g.relaxed.SetPrice(len(g.loose)+len(g.patterns)-1, -float64(pack.Worth(values, l)))
}

// forget drops nonbasic patterns if there are many. The relaxation then begins again.
func (g *gpuRelaxation) forget() {
	if len(g.patterns) < maxPatterns {
		return
	}
	basic := make([]bool, len(g.patterns))
	for j := range g.relaxed.Basic() {
		if i := j - len(g.loose); i >= 0 {
			basic[i] = true
		}
	}
	kept := g.patterns[:0]
	for i, l := range g.patterns {
		if basic[i] {
			kept = append(kept, l)
		}
	}
	g.patterns, g.demand = kept, g.demand[:0]
}

// mix sets the mixture to the solution of the relaxation.
func (g *gpuRelaxation) mix() {
	g.relaxed.Solve(relaxSteps+2*len(g.limits), nil)
	clear(g.mixture)
	for i, it := range g.loose {
		g.mixture[it.shape] += g.relaxed.Amount(i)
	}
	for i, l := range g.patterns {
		if a := g.relaxed.Amount(len(g.loose) + i); a > 0 {
			for k, n := range l {
				if n > 0 {
					g.mixture[k] += float64(a * float64(n))
				}
			}
		}
	}
}

// round rounds the solution of the relaxation: it chooses for each GPU the pattern with the largest remaining amount, and rounds down the loose items.
func (g *gpuRelaxation) round() {
	clear(g.rounded)
	for i, it := range g.loose {
		g.rounded[it.shape] += int32(g.relaxed.Amount(i))
	}
	amounts := make([]float64, len(g.patterns))
	for i := range amounts {
		amounts[i] = g.relaxed.Amount(len(g.loose) + i)
	}
	for range g.count {
		best := 0
		for i := range amounts {
			if amounts[i] > amounts[best] {
				best = i
			}
		}
		if len(amounts) == 0 || amounts[best] <= 0 {
			return
		}
		g.rounded.Add(g.patterns[best], 1)
		amounts[best]--
	}
}

// best returns the prices of the last call of Bound that gave the lowest bounds, the lowest first.
func (g *gpuRelaxation) best(most int) []plane {
	slices.SortStableFunc(g.tried, func(a, b plane) int { return cmp.Compare(a.upper, b.upper) })
	return g.tried[:min(len(g.tried), most)]
}
