package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
)

// replay plans as if the untouched nodes were not there, and then uses them in the place of machines to launch. Right after
// a plan was carried out its machines are just that: nodes with all the capacity of an offer, their pods still waiting. The same
// plan comes out again and finds all its machines there, where packing the nodes from scratch might miss by a pod and launch
// another machine.
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
	// A node that admits just what the offer admits comes before one that would do: others may need that one.
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

// withoutFresh returns the problem without the nodes that are as an offer would be when it was just launched, and their places.
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

// standsFor reports whether node i is what machine x would be.
func (m *Context) standsFor(i int, x Machine) bool {
	n := &m.Problem.Nodes[i]
	for k, pods := range x.Load {
		if pods > n.Fits[k] {
			return false
		}
	}
	return n.SameAs(&m.Problem.Offers[x.Offer].Capacity)
}
