package planner

import (
	"math"
	"slices"
)

// mixer holds what the heuristics for several shapes share.
type mixer struct {
	*problem
	values  []int64 // what one pod of each shape is worth, in units of valueScale
	offered []*knapsack
	noded   []*knapsack
}

// worthiest bounds the worth of a pod, so that the worth of all of them stays within an int64. It is the worth of a pod that only a
// node can hold: 64 times the dearest machine there is.
const worthiest = 1 << 44

func newMixer(p *problem) *mixer {
	m := &mixer{problem: p, values: make([]int64, len(p.shapes))}
	for t := range p.offers {
		m.offered = append(m.offered, newKnapsack(p, p.offers[t].free, p.offers[t].fits))
	}
	for i := range p.nodes {
		m.noded = append(m.noded, newKnapsack(p, p.nodes[i].free, p.nodes[i].fits))
	}
	var pods int64
	for k := range p.shapes {
		pods += int64(len(p.shapes[k].pods))
	}
	for k := range p.shapes {
		m.values[k] = min(worthiest, (1<<61)/(pods+1))
		for t := range p.offers {
			if f := p.offers[t].fits[k]; f > 0 {
				m.values[k] = min(m.values[k], p.offers[t].price*valueScale/int64(f))
			}
		}
	}
	return m
}

// mix plans for several shapes.
func (p *problem) mix() (*solution, int64) {
	m := newMixer(p)
	s := newSolution(p)
	limits := slices.Clone(p.limits)
	m.fill(s, m.values)
	m.buy(s, m.values, limits)
	m.downsize(s)
	return s, 0
}

// fill puts waiting pods on the nodes, the fullest node first, each with the most valuable load.
func (m *mixer) fill(s *solution, values []int64) {
	for i, k := range m.noded {
		if s.left.empty() {
			return
		}
		if v, _ := k.search(values, s.left, 200, 0); v > 0 {
			s.onNodes[i].add(k.best, 1)
			s.left.add(k.best, -1)
		}
	}
}

// buy launches machines for waiting pods: again and again the one whose most valuable load is worth most for its price, as many
// times as the demand has that load.
func (m *mixer) buy(s *solution, values []int64, limits []usage) {
	l := make(load, len(m.shapes))
	for !s.left.empty() {
		best, bestValue := -1, int64(0)
		for t, k := range m.offered {
			o := &m.offers[t]
			if !limits[o.pool].admits(o.uses) {
				continue
			}
			v, _ := k.search(values, s.left, 60, 0)
			if v > 0 && (best < 0 || compareProducts(v, m.offers[best].price, bestValue, o.price) > 0) {
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

// downsize replaces each machine by the cheapest that holds its load. It stays within the pool where that has limits.
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
	free := m.offers[t].free
	for k, n := range l {
		if n > 0 {
			if m.offers[t].fits[k] < n || free.fit(m.shapes[k].request, n) < n {
				return false
			}
			free.take(m.shapes[k].request, n)
		}
	}
	return true
}
