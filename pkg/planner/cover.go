package planner

import "math"

// coverShape is an exact answer for identical pods: which offers to buy, and how many of each, so that together they hold at
// least n pods at the least price, then with the fewest machines.
//
// It is an unbounded knapsack cover. Let the best offer be the one with the least price a pod, and b the pods it holds. Of
// any b machines of other offers some subset holds a multiple of b pods, and the best offer holds as many for no more
// money, so some optimum has fewer than b others. Beyond b times the largest fit the best offer is therefore bought
// without a search, which keeps the table short for any n.
func coverShape(p *problem, k int, n int32) (bought []int32, c cost, ok bool) {
	bought = make([]int32, len(p.offers))
	best, largest := -1, int32(0)
	for t := range p.offers {
		f := min(p.offers[t].fits[k], n)
		if f == 0 {
			continue
		}
		largest = max(largest, f)
		if best < 0 || cheaperFor(p, t, best, f, min(p.offers[best].fits[k], n)) {
			best = t
		}
	}
	if n <= 0 {
		return bought, cost{}, true
	}
	if best < 0 {
		return nil, cost{}, false
	}
	perBest := min(p.offers[best].fits[k], n)
	if spare := int64(n) - int64(perBest)*int64(largest); spare > int64(perBest) {
		times := int32(spare / int64(perBest))
		bought[best] += times
		n -= times * perBest
		c.price, c.machines = int64(times)*p.offers[best].price, int64(times)
	}
	table := make([]cost, n+1)
	choice := make([]int32, n+1)
	for j := int32(1); j <= n; j++ {
		table[j] = cost{price: math.MaxInt64}
		for t := range p.offers {
			f := p.offers[t].fits[k]
			if f == 0 {
				continue
			}
			try := table[max(0, j-f)].plus(cost{price: p.offers[t].price, machines: 1})
			if try.less(table[j]) {
				table[j], choice[j] = try, int32(t)
			}
		}
	}
	for j := n; j > 0; j -= p.offers[choice[j]].fits[k] {
		bought[choice[j]]++
	}
	return bought, c.plus(table[n]), true
}

// cheaperFor reports whether offer a has a lower price a pod than b when they hold fa and fb pods; at the same price a
// pod the one that holds more wins, which makes fewer machines.
func cheaperFor(p *problem, a, b int, fa, fb int32) bool {
	switch compareProducts(p.offers[a].price, int64(fb), p.offers[b].price, int64(fa)) {
	case -1:
		return true
	case 0:
		return fa > fb
	}
	return false
}

// coverOnly plans for a problem of one shape: nodes first, since they are paid for, then an exact cover. It reports
// whether that is within the limits.
func coverOnly(p *problem) (*solution, bool) {
	s := newSolution(p)
	for i := range p.nodes {
		n := min(p.nodes[i].fits[0], s.left[0])
		s.onNodes[i][0] = n
		s.left[0] -= n
	}
	if s.left[0] == 0 || !p.shapes[0].launchable {
		return s, true
	}
	bought, _, _ := coverShape(p, 0, s.left[0])
	for t, times := range bought {
		for ; times > 0; times-- {
			n := min(p.offers[t].fits[0], s.left[0])
			s.machines = append(s.machines, machine{t, load{n}})
			s.left[0] -= n
		}
	}
	return s, s.withinLimits(p)
}
