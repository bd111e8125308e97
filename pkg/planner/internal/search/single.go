package search

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
)

// coverShape solves the problem for identical pods exactly: it returns how many machines of each offer hold at least n pods together at the lowest price, then
// with the fewest machines. If several offers share a stock, it ignores the stocks, and the result may draw more than there is.
//
// It is an unbounded covering knapsack. Let the best offer be the one with the lowest price per pod, and b the number of pods that it holds. Among any b
// machines of other offers, some subset holds a multiple of b pods, and the best offer holds as many for no more money. So some optimum has fewer than b
// machines of other offers. Beyond b times the largest fit, the best offer is therefore bought without a search, which keeps the table short for any n.
func coverShape(p *pack.Problem, k int, n int32) (bought []int32, c pack.Cost, ok bool) {
	if p.Stocked {
		if b := newBounded(p, k, n); b != nil {
			return b.cover()
		}
	}
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

// bounded is the problem for n identical pods if each offer that draws from stocks has its own: a covering knapsack with bounded and unbounded items.
type bounded struct {
	problem *pack.Problem
	shape   int
	pods    int32
	// most is, by offer, how many machines there may be, and -1 for any number.
	most []int64
}

// boundedSteps is the number of steps up to which a bounded knapsack is solved exactly.
const boundedSteps = 20_000_000

// newBounded returns nil if offers share stocks, or if there are too many pods.
func newBounded(p *pack.Problem, k int, n int32) *bounded {
	b := &bounded{problem: p, shape: k, pods: n, most: make([]int64, len(p.Offers))}
	used := make([]bool, len(p.Snapshot.Stocks))
	var steps int64
	for t := range p.Offers {
		o := &p.Offers[t]
		b.most[t] = -1
		f := int64(o.Fits[k])
		if f == 0 {
			continue
		}
		steps += int64(n)
		for i, d := range o.Draws {
			times := min(p.Limits.Stock(d.Stock)/d.Amount, (int64(n)-1)/f+1)
			if i == 0 || times < b.most[t] {
				b.most[t] = times
			}
			if used[d.Stock] {
				return nil
			}
			used[d.Stock] = true
		}
		steps += int64(n) * max(0, b.most[t])
	}
	if n <= 0 || steps > boundedSteps {
		return nil
	}
	return b
}

// cover returns the cheapest numbers of machines. The table has the lowest cost of holding each number of pods with the offers so far, first those that are bounded.
func (b *bounded) cover() (bought []int32, c pack.Cost, ok bool) {
	table := make([]pack.Cost, b.pods+1)
	for j := range table[1:] {
		table[j+1] = pack.Cost{Left: 1}
	}
	// last are, by number of pods, the machines of the offer that was added last.
	type step struct {
		offer int
		last  []int32
	}
	var steps []step
	add := func(t int) {
		o := &b.problem.Offers[t]
		f, one := o.Fits[b.shape], pack.Cost{Price: o.Price, Machines: 1}
		before, last := slices.Clone(table), make([]int32, len(table))
		for j := range int32(len(table)) {
			if b.most[t] < 0 {
				if try := table[max(0, j-f)].Plus(one); j > 0 && try.Less(table[j]) {
					table[j], last[j] = try, last[max(0, j-f)]+1
				}
				continue
			}
			so := pack.Cost{}
			for n := int32(1); int64(n) <= b.most[t] && (n-1)*f < j; n++ {
				so = so.Plus(one)
				if try := before[max(0, j-n*f)].Plus(so); try.Less(table[j]) {
					table[j], last[j] = try, n
				}
			}
		}
		steps = append(steps, step{t, last})
	}
	for _, limited := range []bool{true, false} {
		for t := range b.problem.Offers {
			if b.problem.Offers[t].Fits[b.shape] > 0 && (b.most[t] >= 0) == limited {
				add(t)
			}
		}
	}
	if table[b.pods].Left > 0 {
		return nil, pack.Cost{}, false
	}
	bought = make([]int32, len(b.problem.Offers))
	j := b.pods
	for _, s := range slices.Backward(steps) {
		n := s.last[j]
		bought[s.offer] = n
		j = max(0, j-n*b.problem.Offers[s.offer].Fits[b.shape])
	}
	return bought, table[b.pods], true
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
	bought, _, ok := coverShape(p, 0, s.Left[0])
	if !ok {
		return nil, false
	}
	for t, times := range bought {
		for ; times > 0; times-- {
			n := min(p.Offers[t].Fits[0], s.Left[0])
			s.Machines = append(s.Machines, Machine{t, pack.Load{n}})
			s.Left[0] -= n
		}
	}
	return s, s.withinLimits(p)
}
