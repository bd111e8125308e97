package planner

import "slices"

// replay plans as if the untouched nodes were not there, and then uses them in the place of machines to launch. Right after
// a plan was carried out its machines are just that: nodes with all the capacity of an offer, their pods still waiting. The same
// plan comes out again and finds all its machines there, where packing the nodes from scratch might miss by a pod and launch
// another machine.
func (m *mixer) replay() *solution {
	before, fresh := withoutFresh(m.problem)
	if len(fresh) == 0 {
		return nil
	}
	past, _, _ := solve(before, m.effort.again(), nil)
	s := newSolution(m.problem)
	s.left = past.left
	at := 0
	for i := range m.problem.nodes {
		if !slices.Contains(fresh, i) {
			s.onNodes[i] = past.onNodes[at]
			at++
		}
	}
	// A node that admits just what the offer admits comes before one that would do: others may need that one.
	waiting := past.machines
	for _, same := range []bool{true, false} {
		var rest []machine
		for _, x := range waiting {
			i := slices.IndexFunc(fresh, func(i int) bool {
				return m.standsFor(i, x) && (!same || slices.Equal(m.problem.nodes[i].fits, m.problem.offers[x.offer].fits))
			})
			if i < 0 {
				rest = append(rest, x)
				continue
			}
			s.onNodes[fresh[i]] = x.load
			fresh = slices.Delete(fresh, i, i+1)
		}
		waiting = rest
	}
	s.machines = waiting
	if !s.withinLimits(m.problem) {
		return nil
	}
	return s
}

// withoutFresh returns the problem without the nodes that are as an offer would be when it was just launched, and their places.
func withoutFresh(p *problem) (*problem, []int) {
	var fresh []int
	without := *p
	without.nodes = nil
	for i := range p.nodes {
		if slices.ContainsFunc(p.offers, func(o offer) bool { return o.sameAs(&p.nodes[i].capacity) }) {
			fresh = append(fresh, i)
		} else {
			without.nodes = append(without.nodes, p.nodes[i])
		}
	}
	return &without, fresh
}

// standsFor reports whether node i is what machine x would be.
func (m *mixer) standsFor(i int, x machine) bool {
	n := &m.problem.nodes[i]
	for k, pods := range x.load {
		if pods > n.fits[k] {
			return false
		}
	}
	return n.sameAs(&m.problem.offers[x.offer].capacity)
}
