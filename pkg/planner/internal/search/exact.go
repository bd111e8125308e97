package search

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Limits on the exact search of small problems. A state is a number of unplaced pods of each shape. A step is a state and the load of one machine. Two million
// steps take about 20 ms.
const (
	maxStates = 1 << 13
	maxSteps  = 2_000_000
)

// lattice enumerates all loads up to the demand. A load is encoded as a number in a mixed radix.
type lattice struct {
	demand pack.Load
	stride []int
	states int
	loads  []pack.Load
	needs  []amount.Vector
	room   pack.Room
	unsure bool
}

func newLattice(p *pack.Problem, demand pack.Load) *lattice {
	l := &lattice{demand: demand, stride: make([]int, len(demand)), states: 1, room: pack.Room{Ledger: pack.NewLedger(p)}}
	for k, n := range demand {
		l.stride[k] = l.states
		l.states *= int(n) + 1
	}
	l.loads = make([]pack.Load, l.states)
	l.needs = make([]amount.Vector, l.states)
	for i := range l.loads {
		l.loads[i] = make(pack.Load, len(demand))
		for k, n := range demand {
			l.loads[i][k] = int32(i / l.stride[k] % (int(n) + 1))
			for d, r := range p.Shapes[k].Request {
				l.needs[i][d] += r * int64(l.loads[i][k])
			}
		}
	}
	return l
}

// isSmall reports whether the exact search of a problem stays within its limits.
func isSmall(p *pack.Problem, demand pack.Load) bool {
	states, pairs := int64(1), int64(1)
	for k, n := range demand {
		states *= int64(n) + 1
		pairs *= (int64(n) + 1) * (int64(n) + 2) / 2
		if states > maxStates || pairs > maxSteps {
			return false
		}
		for _, r := range p.Shapes[k].Request {
			if r > math.MaxInt64/(maxStates+1) {
				return false
			}
		}
	}
	return pairs*int64(len(p.Nodes)+1) <= maxSteps
}

// holds reports whether a machine holds a load with the given needs. If it finds no GPUs for a load but cannot exclude that there are some, it returns false
// and sets l.unsure. The optimum is then unknown.
func (l *lattice) holds(p *pack.Problem, c *pack.Capacity, a int) bool {
	for d, x := range l.needs[a] {
		if x > c.Free[d] {
			return false
		}
	}
	l.room.Ledger.Open(c)
	for k, n := range l.loads[a] {
		if n == 0 {
			continue
		}
		if n > c.Fits[k] {
			return false
		}
		if s := &p.Shapes[k]; !s.Plain() {
			if l.room.Ledger.Fit(s, n) < n {
				return false
			}
			l.room.Ledger.Take(s, n)
		}
	}
	if !c.Binned {
		return true
	}
	ok, unsure := p.AssignOrKnow(c, l.loads[a], &l.room, nil)
	l.unsure = l.unsure || unsure
	return ok
}

// below calls f for every load a ≤ of, the largest first and the empty one last, until f returns false.
func (l *lattice) below(of int, f func(a int) bool) {
	top := l.loads[of]
	a, at := of, make(pack.Load, len(top))
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

// enumerate solves a small problem without its limits to optimality, by dynamic programming over the states. The first table has only launches, where one step
// is the cheapest machine for a load. Then each node adds a layer. It reports whether the optimum is within the limits.
func enumerate(p *pack.Problem) (*Solution, pack.Cost, bool) {
	l := newLattice(p, p.Demand())
	cheapest := cheapestHolder(p, l)
	table := make([]pack.Cost, l.states)
	step := make([]int, l.states)
	for d := 1; d < l.states; d++ {
		first := 0
		for l.loads[d][first] == 0 {
			first++
		}
		// Leaving out one pod is also a step. It costs more than any price.
		table[d] = table[d-l.stride[first]].Plus(pack.Cost{Left: 1})
		step[d] = -1
		l.below(d, func(a int) bool {
			if l.loads[a][first] == 0 || cheapest[a] < 0 {
				return true
			}
			try := table[d-a].Plus(pack.Cost{Price: p.Offers[cheapest[a]].Price, Machines: 1})
			if try.Less(table[d]) {
				table[d], step[d] = try, a
			}
			return true
		})
	}
	layers := make([][]int, len(p.Nodes))
	// The layers are ordered from the emptiest node to the fullest, because the last layer chooses first.
	for i := range slices.Backward(p.Nodes) {
		table, layers[i] = nodeLayer(p, l, i, table)
	}
	s := newSolution(p)
	d := l.states - 1
	for i := range p.Nodes {
		a := layers[i][d]
		s.onNodes[i] = l.loads[a]
		d -= a
	}
	left := make(pack.Load, len(p.Shapes))
	for d > 0 {
		if a := step[d]; a >= 0 {
			s.Machines = append(s.Machines, Machine{cheapest[a], append(pack.Load(nil), l.loads[a]...)})
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
	s.Left = left
	return s, table[l.states-1], !l.unsure && s.withinLimits(p)
}

// nodeLayer returns the least cost of every state if node i may take any load that it holds, and the layer below takes the rest.
func nodeLayer(p *pack.Problem, l *lattice, i int, below []pack.Cost) (table []pack.Cost, takes []int) {
	n := &p.Nodes[i]
	fitting := make([]bool, l.states)
	for a := range fitting {
		fitting[a] = l.holds(p, &n.Capacity, a)
	}
	table, takes = make([]pack.Cost, l.states), make([]int, l.states)
	for d := range table {
		table[d] = pack.Cost{Left: math.MaxInt64}
		l.below(d, func(a int) bool {
			if fitting[a] && below[d-a].Less(table[d]) {
				table[d], takes[d] = below[d-a], a
			}
			return true
		})
	}
	return table, takes
}

// cheapestHolder returns, for each load, the cheapest offer that holds it, or -1.
func cheapestHolder(p *pack.Problem, l *lattice) []int {
	out := make([]int, l.states)
	for a := range out {
		out[a] = -1
		for t := range p.Offers {
			o := &p.Offers[t]
			if (out[a] < 0 || o.Price < p.Offers[out[a]].Price) && l.holds(p, &o.Capacity, a) {
				out[a] = t
			}
		}
	}
	return out
}
