package search

import (
	"math"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Limits on problems whose loads tests enumerate. A state is a number of pods of each shape. A step is a state and the load of one machine.
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

// isSmall reports whether all loads of a problem can be enumerated.
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
