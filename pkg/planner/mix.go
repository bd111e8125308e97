package planner

import (
	"math"
	"slices"
)

// mixer holds what the heuristics for several shapes share.
type mixer struct {
	*problem
	alone   []int64 // what one pod of each shape costs among its like, in units of valueScale
	offered []*knapsack
	noded   []*knapsack
	room    room
}

// worthiest bounds the worth of a pod, so that the worth of all of them stays within an int64. It is the worth of a pod that only a
// node can hold: 64 times the dearest machine there is.
const worthiest = 1 << 44

func newMixer(p *problem) *mixer {
	m := &mixer{problem: p, alone: make([]int64, len(p.shapes)), room: room{ledger: newLedger(p)}}
	for t := range p.offers {
		m.offered = append(m.offered, newKnapsack(p, &p.offers[t].capacity))
	}
	for i := range p.nodes {
		m.noded = append(m.noded, newKnapsack(p, &p.nodes[i].capacity))
	}
	var pods int64
	for k := range p.shapes {
		pods += int64(len(p.shapes[k].pods))
	}
	for k := range p.shapes {
		m.alone[k] = min(worthiest, (1<<61)/(pods+1))
		for t := range p.offers {
			if f := p.offers[t].fits[k]; f > 0 {
				m.alone[k] = min(m.alone[k], p.offers[t].price*valueScale/int64(f))
			}
		}
	}
	return m
}

// mix plans for several shapes: constructions first, then the relaxation and what it guides, then improvement of the best.
func (p *problem) mix() (*solution, int64) {
	m := newMixer(p)
	base := newSolution(p)
	m.fill(base, m.alone)
	best := base.clone()
	m.buy(best, m.alone, slices.Clone(p.limits))
	m.downsize(best)
	waiting := base.left
	values, bound := m.alone, int64(0)
	if !waiting.empty() {
		g, proven := m.generate(waiting, waiting, best.machines)
		values, bound = m.guide(g.values), proven
		best = p.better(best, m.dive(base, g))
	}
	if p.limited {
		best = p.better(best, m.frugal(base))
	}
	best = m.improve(best, values)
	m.downsize(best)
	if best.cost(p) != (cost{}) {
		if again := m.replay(); again != nil {
			best = p.better(best, again)
		}
	}
	return best, m.bound(best, base, bound)
}

// better returns the cheaper of two solutions, the first at the same cost.
func (p *problem) better(a, b *solution) *solution {
	if b.cost(p).less(a.cost(p)) {
		return b
	}
	return a
}

// placed is the demand without what a solution leaves out.
func placed(p *problem, s *solution) load {
	d := p.demand()
	d.add(s.left, -1)
	return d
}

// bound proves what it can about the price of plans for the pods that a solution places. The proof for the demand of the base
// carries over where nothing was left out and no node could have taken any of it.
func (m *mixer) bound(s, base *solution, proven int64) int64 {
	if len(s.machines) == 0 {
		return 0
	}
	d := placed(m.problem, s)
	rest := slices.Clone(d)
	var bound int64
	for k := range rest {
		for i := range m.nodes {
			rest[k] = max(0, rest[k]-m.nodes[i].fits[k])
		}
		// Each shape alone has to be covered, whatever shares the machines with it.
		if rest[k] > 0 {
			if _, c, ok := m.cover(k, rest[k]); ok {
				bound = max(bound, c.price)
			}
		}
	}
	if slices.Equal(d, base.left) && len(m.nodes) == 0 {
		return max(bound, proven)
	}
	_, proven = m.generate(rest, d, s.machines)
	return max(bound, proven)
}

// guide makes duals fit to choose by: no pod is worth nothing, else nobody would launch for it.
func (m *mixer) guide(duals []int64) []int64 {
	out := slices.Clone(duals)
	for k, v := range out {
		if m.shapes[k].launchable {
			out[k] = max(v, m.alone[k]/64+1)
		} else {
			out[k] = m.alone[k]
		}
	}
	return out
}

// fill puts waiting pods on the nodes, the fullest node first, each with the most valuable load.
func (m *mixer) fill(s *solution, values []int64) {
	for i, k := range m.noded {
		if s.left.empty() {
			return
		}
		k.price(values, s.left, 3)
		if v, _ := k.search(s.left, 200, 0); v > 0 {
			s.onNodes[i].add(k.best, 1)
			s.left.add(k.best, -1)
		}
	}
}

// buy launches machines for waiting pods: again and again the one whose most valuable load is worth most for its price, as many
// times as the demand has that load.
func (m *mixer) buy(s *solution, values []int64, limits []usage) {
	m.buyBy(s, values, limits, func(t int) int64 { return m.offers[t].price })
}

// buyBy is buy with another idea of what a machine costs.
func (m *mixer) buyBy(s *solution, values []int64, limits []usage, price func(t int) int64) {
	l := make(load, len(m.shapes))
	for _, k := range m.offered {
		k.price(values, s.left, 4)
	}
	for !s.left.empty() {
		best, bestValue := -1, int64(0)
		for t, k := range m.offered {
			o := &m.offers[t]
			if !limits[o.pool].admits(o.uses) {
				continue
			}
			v, _ := k.search(s.left, 60, 0)
			if v > 0 && (best < 0 || compareProducts(v, price(best), bestValue, price(t)) > 0) {
				best, bestValue = t, v
				copy(l, k.best)
			}
		}
		if best < 0 {
			return
		}
		times := int32(math.MaxInt32)
		for k, n := range l {
			if n > 0 {
				times = min(times, s.left[k]/n)
			}
		}
		o := &m.offers[best]
		for ; times > 0 && limits[o.pool].admits(o.uses); times-- {
			limits[o.pool].launch(o.uses)
			s.machines = append(s.machines, machine{best, slices.Clone(l)})
			s.left.add(l, -1)
		}
	}
}

// frugal constructs plans that spend the scarce limits rather than money, and returns the best of them: under a limit of two
// machines the cheapest machine a pod is the wrong one.
func (m *mixer) frugal(base *solution) *solution {
	best := base
	equal := make([]int64, len(m.shapes))
	for k := range equal {
		equal[k] = valueScale
	}
	for d := range limitDims {
		for _, values := range [][]int64{m.alone, equal} {
			s := base.clone()
			m.buyBy(s, values, slices.Clone(m.limits), func(t int) int64 { return max(1, m.offers[t].uses[d]) })
			m.downsize(s)
			best = m.better(best, s)
		}
	}
	return best
}

// downsize replaces each machine by the cheapest that holds its load, within the limits.
func (m *mixer) downsize(s *solution) {
	limits := s.limits(m.problem)
	for i := range s.machines {
		x := &s.machines[i]
		was := &m.offers[x.offer]
		limits[was.pool].giveBack(was.uses)
		for t := range m.offers {
			o := &m.offers[t]
			if o.price < m.offers[x.offer].price && limits[o.pool].admits(o.uses) && m.holds(t, x.load) {
				x.offer = t
			}
		}
		now := &m.offers[x.offer]
		limits[now.pool].launch(now.uses)
	}
}

// holds reports whether a machine of offer t holds a load.
func (m *mixer) holds(t int, l load) bool {
	return m.room.fill(m.problem, &m.offers[t].capacity, l)
}
