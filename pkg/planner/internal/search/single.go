package search

import (
	"math"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// coverShape solves the problem for identical pods exactly: it returns how many machines of each offer hold at least n pods together at the lowest price, then
// with the fewest machines.
//
// It is an unbounded covering knapsack. Let the best offer be the one with the lowest price per pod, and b the number of pods that it holds. Among any b
// machines of other offers, some subset holds a multiple of b pods, and the best offer holds as many for no more money. So some optimum has fewer than b
// machines of other offers. Beyond b times the largest fit, the best offer is therefore bought without a search, which keeps the table short for any n.
func coverShape(p *pack.Problem, k int, n int32) (bought []int32, c pack.Cost, ok bool) {
	bought = make([]int32, len(p.Offers))
	best, largest := -1, int32(0)
	for t := range p.Offers {
		f := min(p.Offers[t].Fits[k], n)
		if f == 0 {
			continue
		}
		largest = max(largest, f)
		if best < 0 || cheaperFor(p, t, best, f, min(p.Offers[best].Fits[k], n)) {
			best = t
		}
	}
	if n <= 0 {
		return bought, pack.Cost{}, true
	}
	if best < 0 {
		return nil, pack.Cost{}, false
	}
	perBest := min(p.Offers[best].Fits[k], n)
	if spare := int64(n) - int64(perBest)*int64(largest); spare > int64(perBest) {
		times := int32(spare / int64(perBest))
		bought[best] += times
		n -= times * perBest
		c.Price, c.Machines = int64(times)*p.Offers[best].Price, int64(times)
	}
	table := make([]pack.Cost, n+1)
	choice := make([]int32, n+1)
	for j := int32(1); j <= n; j++ {
		table[j] = pack.Cost{Price: math.MaxInt64}
		for t := range p.Offers {
			f := p.Offers[t].Fits[k]
			if f == 0 {
				continue
			}
			try := table[max(0, j-f)].Plus(pack.Cost{Price: p.Offers[t].Price, Machines: 1})
			if try.Less(table[j]) {
				table[j], choice[j] = try, int32(t)
			}
		}
	}
	for j := n; j > 0; j -= p.Offers[choice[j]].Fits[k] {
		bought[choice[j]]++
	}
	return bought, c.Plus(table[n]), true
}

// cheaperFor reports whether offer a has a lower price per pod than b if they hold fa and fb pods. At the same price per pod, the one that holds more wins,
// which gives fewer machines.
func cheaperFor(p *pack.Problem, a, b int, fa, fb int32) bool {
	switch amount.CompareProducts(p.Offers[a].Price, int64(fb), p.Offers[b].Price, int64(fa)) {
	case -1:
		return true
	case 0:
		return fa > fb
	}
	return false
}

// coverOnly plans for a problem of one shape: nodes first, because they are already paid for, then an exact cover. It reports whether the result is
// within the limits.
func coverOnly(p *pack.Problem) (*Solution, bool) {
	s := newSolution(p)
	for i := range p.Nodes {
		n := min(p.Nodes[i].Fits[0], s.Left[0])
		s.onNodes[i] = pack.Load{n}
		s.Left[0] -= n
	}
	if s.Left[0] == 0 || !p.Shapes[0].Launchable {
		return s, true
	}
	bought, _, _ := coverShape(p, 0, s.Left[0])
	for t, times := range bought {
		for ; times > 0; times-- {
			n := min(p.Offers[t].Fits[0], s.Left[0])
			s.Machines = append(s.Machines, Machine{t, pack.Load{n}})
			s.Left[0] -= n
		}
	}
	return s, s.withinLimits(p)
}
