package planner

import (
	"math"
	"slices"
)

// Limits on the exact search of small problems. A state is a number of waiting pods of each shape; a step is a state and
// what one machine takes from it. Two million steps are some 20 ms.
const (
	maxStates = 1 << 13
	maxSteps  = 2_000_000
)

// lattice enumerates the loads from nothing to all the demand: a load is a number in a mixed radix.
type lattice struct {
	demand load
	stride []int
	states int
	loads  []load
	needs  []vec
	room   room
	unsure bool
}

func newLattice(p *problem, demand load) *lattice {
	l := &lattice{demand: demand, stride: make([]int, len(demand)), states: 1, room: room{ledger: newLedger(p)}}
	for k, n := range demand {
		l.stride[k] = l.states
		l.states *= int(n) + 1
	}
	l.loads = make([]load, l.states)
	l.needs = make([]vec, l.states)
	for i := range l.loads {
		l.loads[i] = make(load, len(demand))
		for k, n := range demand {
			l.loads[i][k] = int32(i / l.stride[k] % (int(n) + 1))
			for d, r := range p.shapes[k].request {
				l.needs[i][d] += r * int64(l.loads[i][k])
			}
		}
	}
	return l
}

// isSmall reports whether the exact search of a problem stays within its limits.
func isSmall(p *problem, demand load) bool {
	states, pairs := int64(1), int64(1)
	for k, n := range demand {
		states *= int64(n) + 1
		pairs *= (int64(n) + 1) * (int64(n) + 2) / 2
		if states > maxStates || pairs > maxSteps {
			return false
		}
		for _, r := range p.shapes[k].request {
			if r > math.MaxInt64/(maxStates+1) {
				return false
			}
		}
	}
	return pairs*int64(len(p.nodes)+1) <= maxSteps
}

// holds reports whether a machine holds a load of the given needs. A load for which it finds no GPUs, and cannot rule out that there are
// some, is not held, and l.unsure is set: the optimum is then not known.
func (l *lattice) holds(p *problem, c *capacity, a int) bool {
	for d, x := range l.needs[a] {
		if x > c.free[d] {
			return false
		}
	}
	l.room.ledger.open(c)
	for k, n := range l.loads[a] {
		if n == 0 {
			continue
		}
		if n > c.fits[k] {
			return false
		}
		if s := &p.shapes[k]; !s.plain() {
			if l.room.ledger.fit(s, n) < n {
				return false
			}
			l.room.ledger.take(s, n)
		}
	}
	if !c.binned {
		return true
	}
	ok, unsure := p.assignOrKnow(c, l.loads[a], &l.room, nil)
	l.unsure = l.unsure || unsure
	return ok
}

// below calls f for every load a ≤ of, the largest first, the empty one last, until f returns false.
func (l *lattice) below(of int, f func(a int) bool) {
	top := l.loads[of]
	a, at := of, make(load, len(top))
	copy(at, top)
	for {
		if !f(a) {
			return
		}
		k := 0
		for k < len(top) && at[k] == 0 {
			a += int(top[k]) * l.stride[k]
			at[k] = top[k]
			k++
		}
		if k == len(top) {
			return
		}
		at[k]--
		a -= l.stride[k]
	}
}

// enumerate solves a small problem without its limits to the optimum, by dynamic programming over the states: first with launches alone,
// where one step is the cheapest machine for a load, then one layer a node. It reports whether the optimum is within the limits.
func enumerate(p *problem) (*solution, cost, bool) {
	l := newLattice(p, p.demand())
	cheapest := cheapestHolder(p, l)
	table := make([]cost, l.states)
	step := make([]int, l.states)
	for d := 1; d < l.states; d++ {
		first := 0
		for l.loads[d][first] == 0 {
			first++
		}
		// Leaving out one pod is a step as well; it costs more than any money.
		table[d] = table[d-l.stride[first]].plus(cost{left: 1})
		step[d] = -1
		l.below(d, func(a int) bool {
			if l.loads[a][first] == 0 || cheapest[a] < 0 {
				return true
			}
			try := table[d-a].plus(cost{price: p.offers[cheapest[a]].price, machines: 1})
			if try.less(table[d]) {
				table[d], step[d] = try, a
			}
			return true
		})
	}
	layers := make([][]int, len(p.nodes))
	// The order of the layers is from the roomiest node to the fullest, since the last layer is the first to choose.
	for i := range slices.Backward(p.nodes) {
		table, layers[i] = nodeLayer(p, l, i, table)
	}
	s := newSolution(p)
	d := l.states - 1
	for i := range p.nodes {
		a := layers[i][d]
		s.onNodes[i].add(l.loads[a], 1)
		d -= a
	}
	left := make(load, len(p.shapes))
	for d > 0 {
		if a := step[d]; a >= 0 {
			s.machines = append(s.machines, machine{cheapest[a], append(load(nil), l.loads[a]...)})
			d -= a
			continue
		}
		first := 0
		for l.loads[d][first] == 0 {
			first++
		}
		left[first]++
		d -= l.stride[first]
	}
	s.left = left
	return s, table[l.states-1], !l.unsure && s.withinLimits(p)
}

// nodeLayer returns the least cost of every state when node i may take any load that it holds before the layer below has the rest.
func nodeLayer(p *problem, l *lattice, i int, below []cost) (table []cost, takes []int) {
	n := &p.nodes[i]
	fitting := make([]bool, l.states)
	for a := range fitting {
		fitting[a] = l.holds(p, &n.capacity, a)
	}
	table, takes = make([]cost, l.states), make([]int, l.states)
	for d := range table {
		table[d] = cost{left: math.MaxInt64}
		l.below(d, func(a int) bool {
			if fitting[a] && below[d-a].less(table[d]) {
				table[d], takes[d] = below[d-a], a
			}
			return true
		})
	}
	return table, takes
}

// cheapestHolder returns, for each load, the cheapest offer that holds it, or -1.
func cheapestHolder(p *problem, l *lattice) []int {
	out := make([]int, l.states)
	for a := range out {
		out[a] = -1
		for t := range p.offers {
			o := &p.offers[t]
			if (out[a] < 0 || o.price < p.offers[out[a]].price) && l.holds(p, &o.capacity, a) {
				out[a] = t
			}
		}
	}
	return out
}
