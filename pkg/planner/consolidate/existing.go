package consolidate

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// existing is a machine in terms of a problem. It either stays with its pods and may take others, or leaves.
type existing struct {
	// candidate is an index into the candidates of the stepper, and -1 for a node that is not among them.
	candidate int
	// node is an index into the nodes of the problem, or -1 if the machine has no room for any pod.
	node int
	// load has its own pods, price is its price, and moves is the cost of moving its pods.
	load  pack.Load
	price int64
	moves int64
	// charge is what it counts. It is nil for a node that is not among the candidates.
	charge *pack.Charge
	// fixed reports whether the machine stays in any case.
	fixed bool
}

// keeps returns the cost of keeping the machine minus the cost of its leaving, without the cost of other places for its pods.
func (x *existing) keeps() int64 { return x.price - x.moves }

// allLeaving returns the snapshot to plan for if all machines leave, except that the nodes keep their current free room.
func (st *stepper) allLeaving() planner.Snapshot {
	all := make([]int, len(st.candidates))
	for i := range all {
		all[i] = i
	}
	s := st.without(all)
	for c := range s.Classes {
		s.Classes[c].Nodes = st.now.Classes[c].Nodes
	}
	return s
}

// existing returns the candidates and the other nodes with room, in terms of a problem for all of them leaving.
func (st *stepper) existing(p *pack.Problem) []existing {
	shape := map[string]int{}
	for k := range p.Shapes {
		for _, pod := range p.Shapes[k].Pods {
			shape[pod.Name] = k
		}
	}
	nodeAt := map[int]int{}
	for i := range p.Nodes {
		nodeAt[p.Nodes[i].Index] = i
	}
	var out []existing
	for i := range st.candidates {
		m := &st.candidates[i]
		x := existing{candidate: i, node: -1, load: make(pack.Load, len(p.Shapes)), price: int64(m.Price), moves: int64(m.moves), charge: m.charge(), fixed: m.settled}
		for _, pod := range m.Pods {
			if k, ok := shape[pod.Name]; ok {
				x.load[k]++
			} else {
				x.fixed = true
			}
		}
		if at, ok := nodeAt[m.Node]; ok {
			x.node = at
			delete(nodeAt, m.Node)
		}
		out = append(out, x)
	}
	for i := range p.Nodes {
		if _, ok := nodeAt[p.Nodes[i].Index]; ok {
			out = append(out, existing{candidate: -1, node: i, load: make(pack.Load, len(p.Shapes)), fixed: true})
		}
	}
	return out
}

// solution is a solution: which machines stay, what is launched, and where the pods of leaving machines go.
type solution struct {
	stays []bool
	// more is what each machine takes in addition to its own pods. Loads are shared and never changed.
	more     []pack.Load
	machines []search.Machine
	left     pack.Load
}

func (s *solution) clone() *solution {
	return &solution{slices.Clone(s.stays), slices.Clone(s.more), slices.Clone(s.machines), slices.Clone(s.left)}
}

// cost returns the cost of the machines that stay and are launched. The cost of moving pods is a discount for machines that stay.
func (v *improver) cost(s *solution) pack.Cost {
	c := pack.Cost{Left: s.left.Total(), Machines: int64(len(s.machines))}
	for i, stays := range s.stays {
		if stays && !v.existing[i].fixed {
			c.Price += v.existing[i].keeps()
			c.Machines++
		}
	}
	for _, m := range s.machines {
		c.Price += v.ctx.Problem.Offers[m.Offer].Price
	}
	return c
}

// improver searches for the cheapest solution.
type improver struct {
	ctx      *search.Context
	existing []existing
	best     *solution
	values   []int64
	noisy    []int64
	// limits are what the pools may still launch beyond the machines that stay and are launched.
	limits pack.Limits
	seq    search.Sequence
}

// try completes a solution with the given machines staying, and keeps the result if it is the cheapest so far. If some pods cannot be placed, further machines
// stay.
func (v *improver) try(stays []bool, more []pack.Load) {
	found, limits := v.best, v.limits
	stays = slices.Clone(stays)
	for v.best = v.complete(stays, more); !v.best.left.Empty(); v.best = v.complete(stays, more) {
		for left := slices.Clone(v.best.left); !left.Empty(); {
			best, most := -1, int64(0)
			for i := range v.existing {
				if n := v.existing[i].load.Within(left).Total(); !stays[i] && (n > most || n > 0 && n == most && v.existing[i].keeps() < v.existing[best].keeps()) {
					best, most = i, n
				}
			}
			stays[best] = true
			left.Add(v.existing[best].load.Within(left), -1)
		}
	}
	if found != nil && !v.cost(v.best).Less(v.cost(found)) {
		v.best, v.limits = found, limits
	}
}

// complete returns a solution for all pods with the given machines staying. It places first the given loads, then whatever fits, and launches machines for the rest.
func (v *improver) complete(stays []bool, more []pack.Load) *solution {
	s := &solution{stays: slices.Clone(stays), more: make([]pack.Load, len(v.existing)), left: make(pack.Load, len(v.ctx.Problem.Shapes))}
	limits := v.ctx.Problem.Limits.Clone()
	for i := range v.existing {
		x := &v.existing[i]
		s.more[i] = make(pack.Load, len(v.ctx.Problem.Shapes))
		if !s.stays[i] {
			s.left.Add(x.load, 1)
		} else if x.charge != nil {
			limits.Launch(x.charge)
		}
	}
	for i := range v.existing {
		if s.stays[i] && more[i] != nil {
			s.more[i] = more[i].Within(s.left)
			s.left.Add(s.more[i], -1)
		}
	}
	for i := range v.existing {
		if s.stays[i] && v.existing[i].node >= 0 && !s.left.Empty() {
			if l := v.ctx.TopUp(&v.ctx.Problem.Nodes[v.existing[i].node].Capacity, s.more[i], s.left); l != nil {
				s.more[i] = l
			}
		}
	}
	t := &search.Solution{Left: s.left}
	v.ctx.Buy(t, v.values, limits)
	v.ctx.DownsizeWithin(t, limits)
	s.machines = t.Machines
	v.limits = limits
	return s
}
