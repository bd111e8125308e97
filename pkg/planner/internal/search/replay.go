package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
)

// replay plans as if the untouched nodes did not exist, and then uses them in place of equal machines to launch. Right after a plan was carried out, its
// machines are such nodes: they have all the capacity of an offer, and their pods are still pending. The same plan comes out again and finds all its machines,
// whereas packing the nodes from scratch might miss by one pod and launch another machine.
func (m *Context) replay() *Solution {
	before, fresh := withoutFresh(m.Problem)
	if len(fresh) == 0 {
		return nil
	}
	past, _, _ := Solve(before, m.Effort.Again(), nil)
	s := newSolution(m.Problem)
	s.Left = past.Left
	at := 0
	for i := range m.Problem.Nodes {
		if !slices.Contains(fresh, i) {
			s.onNodes[i] = past.onNodes[at]
			at++
		}
	}
	// A node that admits exactly what the offer admits comes before one that admits more, because others may need the latter.
	waiting := past.Machines
	for _, same := range []bool{true, false} {
		var rest []Machine
		for _, x := range waiting {
			i := slices.IndexFunc(fresh, func(i int) bool {
				return m.standsFor(i, x) && (!same || slices.Equal(m.Problem.Nodes[i].Fits, m.Problem.Offers[x.Offer].Fits))
			})
			if i < 0 {
				rest = append(rest, x)
				continue
			}
			s.onNodes[fresh[i]] = x.Load
			fresh = slices.Delete(fresh, i, i+1)
		}
		waiting = rest
	}
	s.Machines = waiting
	if !s.withinLimits(m.Problem) {
		return nil
	}
	return s
}

// withoutFresh returns the problem without the nodes that equal a newly launched machine of an offer, and the indices of these nodes.
func withoutFresh(p *pack.Problem) (*pack.Problem, []int) {
	var fresh []int
	without := *p
	without.Nodes = nil
	for i := range p.Nodes {
		if slices.ContainsFunc(p.Offers, func(o pack.Offer) bool { return o.SameAs(&p.Nodes[i].Capacity) }) {
			fresh = append(fresh, i)
		} else {
			without.Nodes = append(without.Nodes, p.Nodes[i])
		}
	}
	return &without, fresh
}

// standsFor reports whether node i can replace machine x.
func (m *Context) standsFor(i int, x Machine) bool {
	n := &m.Problem.Nodes[i]
	for k, pods := range x.Load {
		if pods > n.Fits[k] {
			return false
		}
	}
	return n.SameAs(&m.Problem.Offers[x.Offer].Capacity)
}
