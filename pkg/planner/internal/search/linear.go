package search

import (
	"math"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// pricedDims are the resources that have prices in [Context.linearValues].
var pricedDims = [...]int{amount.Replicas, amount.CPU, amount.Memory, amount.GPUMemory}

// fractions are numbers for each of pricedDims: the fraction of an offer's resources that a pod requests, or of its price that a resource has.
type fractions [len(pricedDims)]float64

const (
	// linearSpread is the inverse of the distance, relative to the lowest cost, up to which offers share the pods of a shape.
	linearSpread = 25
	// minShare is the smallest share of a resource in the price of an offer.
	minShare = 1e-9
	// linearCost is the number of pairs of a shape and an offer in a round that count as one step.
	linearCost = 40
)

// linearValues returns worths of pods that come from prices of resources, of the offers that draw from no stocks. At any time, the prices of the resources of an offer add up to its price, and a pod is
// worth what its requests cost on the offer where they cost least. So no load a of an offer t is worth more than its machine: with prices q ≥ 0 of whole resources,
//
//	Σ a·v ≤ Σ a·(q·request/capacity) = q·(Σ a·request/capacity) ≤ Σ q = price of t
//
// and the worth of all pods is a lower bound on the price of a plan without nodes, that of pods that can be divided among machines. The caller derives its bound
// from the worths as from any others, in exact arithmetic, so it does not depend on the floating point here.
//
// Ascent by multiplicative weights raises the worth of all pods: a resource takes a greater share of an offer's price if the pods that are cheapest there use more
// of it than of others. There is no linear program, so this is fast for any number of shapes.
func (m *Context) linearValues(demand pack.Load, rounds int) []int64 {
	a := newAscent(m, demand)
	best, values := 0.0, make([]float64, len(demand))
	for n := range rounds {
		if total := a.evaluate(); total > best {
			best = total
			copy(values, a.values)
		}
		a.step(1 / math.Sqrt(float64(n+1)))
		if !m.Effort.Spend(int64(len(demand)*len(m.Problem.Offers)) / linearCost) {
			break
		}
	}
	out := make([]int64, len(values))
	for k, v := range values {
		out[k] = int64(min(math.Floor(v*pricing.Scale), float64(m.Problem.Worthiest)))
	}
	return out
}

// ascent is the state of [Context.linearValues].
type ascent struct {
	problem  *pack.Problem
	demand   pack.Load
	requests [][]fractions // by offer and shape
	shares   []fractions   // by offer: the share of each resource in its price
	used     []fractions   // by offer: what the pods use for which it is cheapest
	costs    []float64     // scratch: the cost of a pod, by offer
	values   []float64     // by shape
}

func newAscent(m *Context, demand pack.Load) *ascent {
	p := m.Problem
	n := len(p.Offers)
	a := &ascent{
		problem: p, demand: demand, requests: make([][]fractions, n), shares: make([]fractions, n), used: make([]fractions, n), costs: make([]float64, n),
		values: make([]float64, len(demand)),
	}
	for t := range p.Offers {
		o := &p.Offers[t]
		a.requests[t] = make([]fractions, len(demand))
		for k := range p.Shapes {
			for i, d := range pricedDims {
				if r := p.Shapes[k].Request[d]; r > 0 && o.Fits[k] > 0 {
					a.requests[t][k][i] = float64(r) / float64(o.Free[d])
				}
			}
		}
		for i := range a.shares[t] {
			a.shares[t][i] = 1 / float64(len(pricedDims))
		}
	}
	return a
}

// evaluate computes the worth of each pod and what the pods use of each offer, and returns the worth of all pods.
func (a *ascent) evaluate() float64 {
	clear(a.used)
	total := 0.0
	for k, n := range a.demand {
		a.values[k] = 0
		if n == 0 || !a.problem.Shapes[k].Launchable {
			continue
		}
		if a.values[k] = a.price(k); math.IsInf(a.values[k], 1) {
			a.values[k] = 0
			continue
		}
		total += float64(a.values[k] * float64(n))
		a.use(k)
	}
	return total
}

// price computes the cost of a pod on each offer, and returns the lowest.
func (a *ascent) price(k int) float64 {
	least := math.Inf(1)
	for t := range a.costs {
		o := &a.problem.Offers[t]
		a.costs[t] = math.Inf(1)
		if o.Fits[k] == 0 || o.MayRunOut() {
			continue
		}
		share := 0.0
		for i, x := range &a.requests[t][k] {
			share += float64(a.shares[t][i] * x)
		}
		a.costs[t] = float64(share * float64(o.Price))
		least = min(least, a.costs[t])
	}
	return least
}

// use divides the pods of a shape among the offers that cost nearly as little as the cheapest one.
func (a *ascent) use(k int) {
	sum := 0.0
	for t, cost := range a.costs {
		weight := 1.0
		if cost > a.values[k] {
			weight = max(0, 1-float64((cost/a.values[k]-1)*linearSpread))
		}
		a.costs[t] = float64(weight * weight)
		sum += a.costs[t]
	}
	for t, weight := range a.costs {
		if weight > 0 {
			pods := weight / sum * float64(a.demand[k])
			for i, x := range &a.requests[t][k] {
				a.used[t][i] += float64(pods * x)
			}
		}
	}
}

// step changes the shares of the resources in the price of each offer.
func (a *ascent) step(size float64) {
	for t := range a.shares {
		mean, most, sum := 0.0, 0.0, 0.0
		for i, x := range &a.used[t] {
			mean += float64(a.shares[t][i] * x)
			most = max(most, x)
		}
		if most == 0 {
			continue
		}
		for i, x := range &a.used[t] {
			a.shares[t][i] = max(minShare, a.shares[t][i]) * max(0.1, 1+float64(size*float64((x-mean)/most)))
			sum += a.shares[t][i]
		}
		for i := range a.shares[t] {
			a.shares[t][i] /= sum
		}
	}
}
