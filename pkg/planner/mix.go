package planner

import (
	"cmp"
	"math"
	"slices"
)

// mixer holds what the heuristics for several shapes share.
type mixer struct {
	problem *problem
	effort  *effort
	alone   []int64 // what one pod of each shape costs where a machine is full of its like, in units of valueScale
	oracle  *oracle
	noded   []*knapsack
	cheap   []int  // the offers, the cheapest first
	dull    []bool // the offers whose best load is worth far less than their price
	room    room
	rebuy   rebuy
	// narrow are the relaxations of dives, the one that was used last behind.
	narrow [2]*master
	// known are columns to buy when few machines are bought, which a short search does not find.
	known []column
}

func newMixer(p *problem, e *effort) *mixer {
	m := &mixer{problem: p, effort: e, oracle: newOracle(p), alone: make([]int64, len(p.shapes)), room: room{ledger: newLedger(p)}}
	for i := range m.narrow {
		m.narrow[i] = &master{known: map[string]bool{}}
	}
	for t := range p.offers {
		m.cheap = append(m.cheap, t)
	}
	slices.SortStableFunc(m.cheap, func(a, b int) int { return cmp.Compare(p.offers[a].price, p.offers[b].price) })
	for i := range p.nodes {
		m.noded = append(m.noded, newKnapsack(p, &p.nodes[i].capacity))
	}
	for k := range p.shapes {
		m.alone[k] = p.worthiest
		for t := range p.offers {
			if p.offers[t].fits[k] > 0 {
				m.alone[k] = min(m.alone[k], p.offers[t].price*valueScale/int64(p.offers[t].alone(&p.shapes[k], math.MaxInt32)))
			}
		}
	}
	return m
}

// aimAll weighs the dimensions of each offer by what they are worth, and finds the dull ones.
func (m *mixer) aimAll(values []int64) {
	m.dull = make([]bool, len(m.problem.offers))
	demand := m.problem.demand()
	for t := range m.oracle.machines {
		root := m.oracle.machines[t].knapsack.price(values, demand)
		m.dull[t] = root < m.problem.offers[t].price*valueScale*9/10
		m.effort.spend(priceCost)
	}
}

// priceAll prices all offers at the cost of the effort.
func (m *mixer) priceAll(values []int64, demand load, care care, floor func(t int) int64) []priced {
	return m.oracle.price(m.effort, values, demand, care, floor)
}

// promising reports whether an offer is worth a look in the short searches.
func (m *mixer) promising(t int) bool { return m.dull == nil || !m.dull[t] }

// better returns the cheaper of two solutions, the first at the same cost.
func better(p *problem, a, b *solution) *solution {
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

// guide makes duals fit to choose by: no pod is worth nothing, else nobody would launch for it.
func (m *mixer) guide(duals []int64) []int64 {
	out := slices.Clone(duals)
	for k, v := range out {
		if m.problem.shapes[k].launchable {
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
		k.price(values, s.left)
		if v, _ := k.search(s.left, 200, 0); v > 0 {
			s.onNodes[i].add(k.best, 1)
			s.left.add(k.best, -1)
		}
	}
}

// buy launches machines for waiting pods: again and again the one whose most valuable load is worth most for its price, as many
// times as the demand has that load.
func (m *mixer) buy(s *solution, values []int64, limits []usage) {
	m.buyBy(s, values, limits, func(t int) int64 { return m.problem.offers[t].price })
}

// buyBy is buy with another idea of what a machine costs. What a machine can hold of less is worth no more, so only the offers that were
// best when more was waiting are looked at anew.
func (m *mixer) buyBy(s *solution, values []int64, limits []usage, price func(t int) int64) {
	value, loads := make([]int64, len(m.oracle.machines)), make([]load, len(m.oracle.machines))
	fresh := make([]bool, len(m.oracle.machines))
	for t := range m.oracle.machines {
		m.oracle.machines[t].knapsack.weigh(values, s.left)
		value[t] = math.MaxInt64
	}
	for !s.left.empty() {
		best := -1
		for t := range m.oracle.machines {
			if o := &m.problem.offers[t]; value[t] > 0 && limits[o.pool].admits(o.uses) && (best < 0 || compareProducts(value[t], price(best), value[best], price(t)) > 0) {
				best = t
			}
		}
		if best < 0 {
			return
		}
		k := m.oracle.machines[best].knapsack
		if !fresh[best] {
			value[best], _ = k.search(s.left, buySteps, 0)
			loads[best], fresh[best] = slices.Clone(k.best), true
			continue
		}
		l := loads[best]
		times := int32(math.MaxInt32)
		for k, n := range l {
			if n > 0 {
				times = min(times, s.left[k]/n)
			}
		}
		o := &m.problem.offers[best]
		for ; times > 0 && limits[o.pool].admits(o.uses); times-- {
			limits[o.pool].launch(o.uses)
			s.machines = append(s.machines, machine{best, l})
			s.left.add(l, -1)
		}
		clear(fresh)
	}
}

// buySteps bounds the search for the next machine to buy.
const buySteps = 60

// frugal constructs plans that spend the scarce limits rather than money, and returns the best of them: under a limit of two
// machines the cheapest machine a pod is the wrong one.
func (m *mixer) frugal(base *solution) *solution {
	best := base
	equal := make([]int64, len(m.problem.shapes))
	for k := range equal {
		equal[k] = valueScale
	}
	for d := range limitDims {
		for _, values := range [][]int64{m.alone, equal} {
			s := base.clone()
			m.buyBy(s, values, slices.Clone(m.problem.limits), func(t int) int64 { return max(1, m.problem.offers[t].uses[d]) })
			m.downsize(s)
			best = better(m.problem, best, s)
		}
	}
	return best
}

// downsize replaces each machine by the cheapest that holds its load, within the limits.
func (m *mixer) downsize(s *solution) { m.downsizeWithin(s, s.limits(m.problem)) }

// downsizeWithin is downsize within what the given limits leave beside the machines of s.
func (m *mixer) downsizeWithin(s *solution, limits []usage) {
	for i := range s.machines {
		x := &s.machines[i]
		was := &m.problem.offers[x.offer]
		limits[was.pool].giveBack(was.uses)
		for t := range m.problem.offers {
			o := &m.problem.offers[t]
			if o.price < m.problem.offers[x.offer].price && limits[o.pool].admits(o.uses) && m.holds(t, x.load) {
				x.offer = t
			}
		}
		now := &m.problem.offers[x.offer]
		limits[now.pool].launch(now.uses)
	}
}

// holds reports whether a machine of offer t holds a load.
func (m *mixer) holds(t int, l load) bool {
	return m.room.fill(m.problem, &m.problem.offers[t].capacity, l)
}
