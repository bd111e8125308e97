package search

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Context holds the shared state of the heuristics for several shapes.
type Context struct {
	Problem *pack.Problem
	Effort  *effort.Budget
	// alone are, by shape, the price of one pod on a machine that is full of this shape, in units of 1/pricing.Scale. Machines that draw from stocks count only for
	// shapes that no others hold.
	alone []int64
	// linear are worths of pods at which no load is worth more than its machine ([Context.linearValues]) and what that draws from stocks, at linearStocks. They are
	// nil unless there are many shapes.
	linear, linearStocks []int64
	// duals are those of the stocks at the last worths.
	duals  []int64
	oracle *pricing.Oracle
	// NodeKnapsacks are by node. Equal nodes share one.
	NodeKnapsacks   []*pricing.Knapsack
	nodeGroups      []nodeGroup
	nodeGroupOracle *pricing.Oracle // by node group
	byPrice         []int           // the offers, the cheapest first
	room            pack.Room
	rebuy           Repair
	// residuals are the relaxations of dives, the one that was used last at the end.
	residuals [2]*Master
}

// NewContext returns the shared state of the searches of a problem.
func NewContext(p *pack.Problem, e *effort.Budget) *Context {
	offers := make([]*pack.Capacity, len(p.Offers))
	for t := range offers {
		offers[t] = &p.Offers[t].Capacity
	}
	m := &Context{Problem: p, Effort: e, oracle: pricing.NewOracle(p, offers), alone: make([]int64, len(p.Shapes)), room: pack.Room{Ledger: pack.NewLedger(p)}}
	for i := range m.residuals {
		m.residuals[i] = &Master{known: map[string]bool{}}
	}
	for t := range p.Offers {
		m.byPrice = append(m.byPrice, t)
	}
	slices.SortStableFunc(m.byPrice, func(a, b int) int { return cmp.Compare(p.Offers[a].Price, p.Offers[b].Price) })
	for k := range p.Shapes {
		anywhere := p.Worthiest
		m.alone[k] = p.Worthiest
		for t := range p.Offers {
			if p.Offers[t].Fits[k] > 0 {
				price := p.Offers[t].Price * pricing.Scale / int64(p.Offers[t].Alone(&p.Shapes[k], math.MaxInt32))
				if anywhere = min(anywhere, price); !p.Offers[t].MayRunOut() {
					m.alone[k] = min(m.alone[k], price)
				}
			}
		}
		if m.alone[k] == p.Worthiest {
			m.alone[k] = anywhere
		}
	}
	m.addNodeGroups(p)
	return m
}

// AimAll computes the weights of the dimensions of each offer from the worths of pods.
func (m *Context) AimAll(values []int64) {
	demand := m.Problem.Demand()
	for t := range m.oracle.Machines {
		m.oracle.Machines[t].Knapsack.Price(values, demand)
		m.Effort.Spend(pricing.PriceCost)
	}
}

// PriceAll prices all offers and charges the effort.
func (m *Context) PriceAll(values []int64, demand pack.Load, limit pricing.Effort, floor func(t int) int64) []pricing.Priced {
	return m.oracle.Price(m.Effort, values, demand, limit, floor)
}

// better returns the cheaper of two solutions, and a if they cost the same.
func better(p *pack.Problem, a, b *Solution) *Solution {
	if b.cost(p).Less(a.cost(p)) {
		return b
	}
	return a
}

// placed returns the demand without the pods that a solution does not place.
func placed(p *pack.Problem, s *Solution) pack.Load {
	d := p.Demand()
	d.Add(s.Left, -1)
	return d
}

// ChoiceValues makes duals suitable for choices: every pod for which a machine can be launched has a positive worth. Otherwise nothing would be
// launched for it.
func (m *Context) ChoiceValues(duals []int64) []int64 {
	out := slices.Clone(duals)
	for k, v := range out {
		if m.Problem.Shapes[k].Launchable {
			out[k] = max(v, m.alone[k]/64+1)
		} else {
			out[k] = m.alone[k]
		}
	}
	return out
}

// fill puts unplaced pods on the nodes without pods, the fullest node first, each with its most valuable load.
func (m *Context) fill(s *Solution, values []int64) {
	m.fillIf(s, values, func(*nodeGroup) bool { return true })
}

// fillIf is fill for the nodes of some node groups.
func (m *Context) fillIf(s *Solution, values []int64, wanted func(*nodeGroup) bool) {
	is := make([]bool, len(m.Problem.Nodes))
	for h := range m.nodeGroups {
		for _, i := range m.nodeGroups[h].nodes {
			is[i] = wanted(&m.nodeGroups[h])
		}
	}
	for i, k := range m.NodeKnapsacks {
		if s.Left.Empty() {
			return
		}
		if !is[i] || !s.onNodes[i].Empty() {
			continue
		}
		k.Price(values, s.Left)
		if v, _ := k.Search(s.Left, 200, 0); v > 0 {
			s.onNodes[i] = slices.Clone(k.Best)
			s.Left.Add(k.Best, -1)
		}
	}
}

// Buy launches machines for unplaced pods. It repeatedly chooses the machine with the most worth per price in its most valuable load, and launches as
// many of it as the demand fills with that load.
func (m *Context) Buy(s *Solution, values []int64, limits pack.Limits) {
	m.buyBy(s, values, limits, m.cost)
}

// buyBy is Buy with other prices. A machine cannot hold more worth when fewer pods are left, so only the offers that were best before are priced again.
func (m *Context) buyBy(s *Solution, values []int64, limits pack.Limits, price func(t int) int64) {
	value, loads := make([]int64, len(m.oracle.Machines)), make([]pack.Load, len(m.oracle.Machines))
	fresh := make([]bool, len(m.oracle.Machines))
	for t := range m.oracle.Machines {
		m.oracle.Machines[t].Knapsack.Weigh(values, s.Left)
		value[t] = math.MaxInt64
	}
	for !s.Left.Empty() {
		best := -1
		for t := range m.oracle.Machines {
			if o := &m.Problem.Offers[t]; value[t] > 0 && limits.Admits(&o.Charge) && (best < 0 || amount.CompareProducts(value[t], price(best), value[best], price(t)) > 0) {
				best = t
			}
		}
		if best < 0 {
			return
		}
		k := m.oracle.Machines[best].Knapsack
		if !fresh[best] {
			value[best], _ = k.Search(s.Left, buySteps, 0)
			loads[best], fresh[best] = slices.Clone(k.Best), true
			continue
		}
		l := loads[best]
		times := int32(math.MaxInt32)
		for k, n := range l {
			if n > 0 {
				times = min(times, s.Left[k]/n)
			}
		}
		o := &m.Problem.Offers[best]
		for ; times > 0 && limits.Admits(&o.Charge); times-- {
			limits.Launch(&o.Charge)
			s.Machines = append(s.Machines, Machine{best, l})
			s.Left.Add(l, -1)
		}
		clear(fresh)
	}
}

// buySteps limits the search for the next machine to buy.
const buySteps = 60

// frugal constructs plans that save scarce limits instead of money, and returns the best of them. If a limit allows two machines, for example, the machine
// with the lowest price per pod may be the wrong one.
func (m *Context) frugal(base *Solution) *Solution {
	best := base
	equal := make([]int64, len(m.Problem.Shapes))
	for k := range equal {
		equal[k] = pricing.Scale
	}
	for d := range amount.LimitDims {
		for _, values := range [][]int64{m.alone, equal} {
			s := base.clone()
			m.buyBy(s, values, m.Problem.Limits.Clone(), func(t int) int64 { return max(1, m.Problem.Offers[t].Uses[d]) })
			m.downsize(s)
			best = better(m.Problem, best, s)
		}
	}
	return best
}

// downsize replaces each machine by the cheapest one that holds its load, within the limits.
func (m *Context) downsize(s *Solution) { m.DownsizeWithin(s, s.limits(m.Problem)) }

// DownsizeWithin is downsize within given limits, which are what the machines of s leave.
func (m *Context) DownsizeWithin(s *Solution, limits pack.Limits) {
	for i := range s.Machines {
		x := &s.Machines[i]
		was := &m.Problem.Offers[x.Offer]
		limits.GiveBack(&was.Charge)
		for t := range m.Problem.Offers {
			o := &m.Problem.Offers[t]
			if o.Price < m.Problem.Offers[x.Offer].Price && limits.Admits(&o.Charge) && m.holds(t, x.Load) {
				x.Offer = t
			}
		}
		now := &m.Problem.Offers[x.Offer]
		limits.Launch(&now.Charge)
	}
}

// holds reports whether a machine of offer t holds a load.
func (m *Context) holds(t int, l pack.Load) bool {
	return m.room.Fill(m.Problem, &m.Problem.Offers[t].Capacity, l)
}

// nodeGroup is a set of equal existing nodes. They are used like machines of an offering whose price is 0 and of which there are only that many.
type nodeGroup struct {
	nodes []int // indices into the nodes of the problem
	// relaxed reports whether the relaxation decides what the nodes take. Nodes of other node groups are filled before.
	relaxed bool
}

// maxNodeGroups is the maximum number of node groups that have rows in a relaxation. Its cost grows with the square of the rows.
const maxNodeGroups = 64

// addNodeGroups groups the nodes by what they can hold, and chooses the node groups that have rows in relaxations: those that can hold the most worth.
func (m *Context) addNodeGroups(p *pack.Problem) {
	var capacities []*pack.Capacity
	for i := range p.Nodes {
		c, at := &p.Nodes[i].Capacity, len(m.nodeGroups)-1
		// The nodes are sorted by their room.
		for at >= 0 && c.Free == capacities[at].Free && !c.Equals(capacities[at]) {
			at--
		}
		if at < 0 || c.Free != capacities[at].Free {
			at = len(m.nodeGroups)
			m.nodeGroups, capacities = append(m.nodeGroups, nodeGroup{}), append(capacities, c)
		}
		m.nodeGroups[at].nodes = append(m.nodeGroups[at].nodes, i)
	}
	m.nodeGroupOracle = pricing.NewOracle(p, capacities)
	m.NodeKnapsacks = make([]*pricing.Knapsack, len(p.Nodes))
	demand, order, most := p.Demand(), make([]int, len(m.nodeGroups)), make([]int64, len(m.nodeGroups))
	for h := range m.nodeGroups {
		k := m.nodeGroupOracle.Machines[h].Knapsack
		for _, i := range m.nodeGroups[h].nodes {
			m.NodeKnapsacks[i] = k
		}
		order[h] = h
		if len(m.nodeGroups) > maxNodeGroups {
			most[h] = k.Price(m.alone, demand)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return -cmp.Compare(most[a], most[b]) })
	for _, h := range order[:min(len(order), maxNodeGroups)] {
		m.nodeGroups[h].relaxed = true
	}
}

// Repair is a short branch and bound for the machines to buy for a few unplaced pods.
type Repair struct {
	ctx    *Context
	values []int64
	// least, if not nil, are worths of pods at which no load is worth more than its machine and what that draws. Parts of the search are skipped in which the
	// waiting pods are worth more than their machines may cost.
	least  []int64
	limits pack.Limits
	steps  int
	stack  []Machine
	best   pack.Cost
	Kept   []Machine
	Left   pack.Load
	found  bool
	// shortlists are scratch space, one for each depth of the stack.
	shortlists []*shortlist
}

// shortlist holds the few machines with the greatest worth per price, the best first. The load of the element after them is scratch space for another one.
type shortlist struct {
	repair *Repair
	next   []Machine // what may be bought
	rest   pack.Load // what is still waiting after one of them is bought
	best   [rebuyWidth + 1]struct {
		Machine
		value int64
	}
	n int
}
