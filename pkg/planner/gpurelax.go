package planner

import "math"

// gpuRelaxation bounds the loads of a machine with several like GPUs on which pods state device memory. It parts the machine: what the pods of
// one GPU take of what all share is paid for, at prices, and each GPU is then a knapsack of its own, whose loads are few and whole.
//
// The machine's own knapsack sees GPUs in their sum only, but CPU and memory without parts; neither bound is always the better one.
type gpuRelaxation struct {
	problem *problem
	whole   *knapsack
	count   int
	one     *knapsack
	relaxed relaxation
	// loose are the items of the machine that state no device memory; the first columns of the relaxation are theirs, the others are patterns.
	loose    []*item
	patterns []load
	reduced  []int64
	paid     [dims]int64
	mixture  []float64
	rounded  load
	// kept are the reduced worths, the most that one GPU holds of them, and the prices, of the best bound of the last call.
	kept     []int64
	keptMost int64
	keptPaid [dims]int64
}

// Limits on the search for patterns: in one call, and in all.
const (
	patternRounds = 12
	maxPatterns   = 150
	patternSteps  = 400
)

// newGPURelaxation returns nil for machines for which it is of no use.
func newGPURelaxation(p *problem, k *knapsack) *gpuRelaxation {
	if !k.binned || len(k.gpus) < 2 || k.gpus[0] != k.gpus[len(k.gpus)-1] {
		return nil
	}
	n := len(p.shapes)
	g := &gpuRelaxation{problem: p, whole: k, count: len(k.gpus), reduced: make([]int64, n), kept: make([]int64, n), rounded: make(load, n), mixture: make([]float64, n)}
	one := &capacity{free: k.free, quotas: k.quotas, fits: make([]int32, n)}
	one.free[dimReplicas], one.free[dimGPUMemory] = k.gpus[0].Replicas, k.gpus[0].MemoryBytes
	g.relaxed.rows = dims + 1
	for d := range dims {
		g.relaxed.limit[d] = 1
	}
	g.relaxed.limit[dims] = float64(g.count)
	for i := range k.items {
		it := &k.items[i]
		if it.of.states() {
			one.fits[it.shape] = one.alone(it.of, it.fits)
			continue
		}
		g.loose = append(g.loose, it)
		g.relaxed.cols = append(g.relaxed.cols, relaxedColumn{use: g.use(it)})
	}
	g.relaxed.empty()
	g.one = newKnapsack(p, one)
	// What all GPUs share is paid for: without it many items are alike, and few are left.
	for i := range g.one.items {
		it, col := &g.one.items[i], &g.one.relaxed.cols[i]
		for d := range it.request {
			if d != dimReplicas && d != dimGPUMemory {
				it.request[d], it.scaled[d], col.use[d] = 0, 0, 0
			}
		}
		it.filled = g.one.free.fit(it.request, math.MaxInt32)
		it.fits = min(it.filled, int32(len(it.of.pods)))
	}
	return g
}

// use is what a pod takes of what all GPUs share. Device memory is not of that.
func (g *gpuRelaxation) use(it *item) [relaxedRows]float64 {
	var use [relaxedRows]float64
	for d, r := range it.request {
		if r > 0 && d != dimGPUMemory {
			use[d] = float64(r) / float64(g.whole.free[d])
		}
	}
	return use
}

// bound returns an upper bound on the value of any load, at the worths that the machine's own knapsack was given last; none below the floor is looked
// for. g.mixture then is worth about as much.
func (g *gpuRelaxation) bound(values []int64, demand load, floor int64) (upper int64, steps int) {
	moved := false
	for i, it := range g.loose {
		col := &g.relaxed.cols[i]
		most := float64(min(it.fits, demand[it.shape]))
		moved = moved || col.most != most
		col.value, col.most = float64(values[it.shape]), most
	}
	for i, l := range g.patterns {
		col := &g.relaxed.cols[len(g.loose)+i]
		col.value = float64(worth(values, l))
	}
	if moved {
		g.relaxed.empty()
	}
	upper = -1
	for range patternRounds {
		steps += 4
		g.relaxed.solve()
		u, most, pattern := g.relax(values, demand, &steps)
		if upper < 0 || u < upper {
			upper, g.keptMost, g.keptPaid = u, most, g.paid
			copy(g.kept, g.reduced)
		}
		if upper <= floor || pattern == nil || len(g.patterns) >= maxPatterns {
			break
		}
		g.add(values, pattern)
	}
	return upper, steps
}

// relax bounds the value at the present prices, and returns the most that one GPU holds of what is left of it then, and the pattern of one GPU that is worth most, or nil where none is worth more than a GPU.
func (g *gpuRelaxation) relax(values []int64, demand load, steps *int) (upper, most int64, pattern load) {
	paid := &g.paid
	*paid = [dims]int64{}
	for d := range dims {
		if d < dimGPUMemory {
			paid[d] = int64(min(max(0, g.relaxed.price[d]), 1<<60))
			upper = saturating(upper, paid[d])
		}
	}
	for i := range g.whole.items {
		it := &g.whole.items[i]
		v := values[it.shape]
		for d, w := range it.scaled {
			if paid[d] > 0 && w > 0 {
				v -= mulDiv(paid[d], w, unit)
			}
		}
		v = max(0, v)
		g.reduced[it.shape] = v
		if !it.of.states() {
			upper = saturating(upper, v*int64(min(it.fits, demand[it.shape])))
			g.reduced[it.shape] = 0
		}
	}
	floor := int64(max(0, g.relaxed.price[dims]))
	g.one.price(g.reduced, demand)
	v, most := g.one.search(demand, patternSteps, floor)
	*steps += patternSteps - g.one.steps
	upper = saturating(upper, mulDiv(most, int64(g.count), 1))
	if v <= floor+floor/10_000 {
		return upper, most, nil
	}
	return upper, most, g.one.best
}

func (g *gpuRelaxation) add(values []int64, pattern load) {
	l := append(load(nil), pattern...)
	col := relaxedColumn{value: float64(worth(values, l)), most: float64(g.count)}
	for i := range g.whole.items {
		it := &g.whole.items[i]
		if n := l[it.shape]; n > 0 {
			use := g.use(it)
			for d := range dims {
				col.use[d] += float64(use[d] * float64(n))
			}
		}
	}
	col.use[dims] = 1
	g.patterns = append(g.patterns, l)
	g.relaxed.cols = append(g.relaxed.cols, col)
}

// mix sets the mixture to what the relaxation buys.
func (g *gpuRelaxation) mix() {
	g.relaxed.solve()
	clear(g.mixture)
	for i, it := range g.loose {
		g.mixture[it.shape] += g.relaxed.amount(i)
	}
	for i, l := range g.patterns {
		if a := g.relaxed.amount(len(g.loose) + i); a > 0 {
			for k, n := range l {
				if n > 0 {
					g.mixture[k] += float64(a * float64(n))
				}
			}
		}
	}
}

// round chooses a pattern for each GPU, those of which the relaxation buys most, and what it buys of the rest.
func (g *gpuRelaxation) round() {
	clear(g.rounded)
	for i, it := range g.loose {
		g.rounded[it.shape] += int32(g.relaxed.amount(i))
	}
	amounts := make([]float64, len(g.patterns))
	for i := range amounts {
		amounts[i] = g.relaxed.amount(len(g.loose) + i)
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
		g.rounded.add(g.patterns[best], 1)
		amounts[best]--
	}
}
