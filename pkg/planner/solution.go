package planner

import (
	"cmp"
	"slices"
	"strings"
)

// machine is one machine to launch and what it is for. Machines share loads: a load is replaced, never changed.
type machine struct {
	offer int
	load  load
}

// solution is a plan in terms of a problem.
type solution struct {
	onNodes  []load
	machines []machine
	left     load
}

func newSolution(p *problem) *solution {
	s := &solution{onNodes: make([]load, len(p.nodes)), left: p.demand()}
	for i := range s.onNodes {
		s.onNodes[i] = make(load, len(p.shapes))
	}
	return s
}

func (s *solution) clone() *solution {
	c := &solution{left: slices.Clone(s.left), machines: slices.Clone(s.machines), onNodes: slices.Clone(s.onNodes)}
	for i := range c.onNodes {
		c.onNodes[i] = slices.Clone(c.onNodes[i])
	}
	return c
}

func (s *solution) cost(p *problem) cost {
	c := cost{left: s.left.total(), machines: int64(len(s.machines))}
	for _, m := range s.machines {
		c.price += p.offers[m.offer].price
	}
	return c
}

// limits returns what the pools may still launch after the machines of s.
func (s *solution) limits(p *problem) []usage {
	left := slices.Clone(p.limits)
	for _, m := range s.machines {
		o := &p.offers[m.offer]
		left[o.pool].launch(o.uses)
	}
	return left
}

// withinLimits reports whether the machines of s break no limit.
func (s *solution) withinLimits(p *problem) bool {
	for i, left := range s.limits(p) {
		for d, x := range left {
			if x < 0 && x < p.limits[i][d] {
				return false
			}
		}
	}
	return true
}

// planOf names the pods: in the order of their names, first the nodes, then the launches, and those left over last.
func planOf(p *problem, s *solution) Plan {
	next := make([]int, len(p.shapes))
	names := p.inTurn(next)
	var plan Plan
	for i, l := range s.onNodes {
		if !l.empty() {
			pods, gpus := names.pick(&p.nodes[i].capacity, l)
			plan.Placements = append(plan.Placements, Placement{Node: p.nodes[i].index, Pods: pods, GPUs: gpus})
		}
	}
	// A copy: the order of the machines is part of a search that may go on.
	machines := slices.Clone(s.machines)
	slices.SortStableFunc(machines, func(a, b machine) int {
		return cmp.Or(cmp.Compare(a.offer, b.offer), -slices.Compare(a.load, b.load))
	})
	for _, m := range machines {
		o := &p.offers[m.offer]
		pods, gpus := names.pick(&o.capacity, m.load)
		plan.Launches = append(plan.Launches, Launch{Offering: o.index, Pods: pods, GPUs: gpus})
		plan.Price += MicroUSD(o.price)
	}
	plan.Unplaced = append(plan.Unplaced, p.refused...)
	left := s.limits(p)
	for k := range p.shapes {
		why := map[int]Refusal{}
		for _, pod := range p.shapes[k].pods[next[k]:] {
			r, ok := why[pod.class]
			if !ok {
				r = p.refusal(&p.shapes[k], p.snapshot.Classes[pod.class], left)
				why[pod.class] = r
			}
			plan.Unplaced = append(plan.Unplaced, Unplaced{Pod: pod.name, Refusal: r})
		}
	}
	nodes := p.snapshot.Nodes
	slices.SortStableFunc(plan.Placements, func(a, b Placement) int { return strings.Compare(nodes[a.Node].Name, nodes[b.Node].Name) })
	slices.SortStableFunc(plan.Unplaced, func(a, b Unplaced) int { return strings.Compare(a.Pod, b.Pod) })
	return plan
}
