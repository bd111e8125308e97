package search

import (
	"cmp"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Machine is one machine to launch, with its load. Machines share loads: a load is replaced, never changed.
type Machine struct {
	Offer int
	Load  pack.Load
}

// Solution is a plan in terms of a problem. Its nodes may share loads: a load is replaced, never changed.
type Solution struct {
	onNodes  []pack.Load
	Machines []Machine
	Left     pack.Load
}

func newSolution(p *pack.Problem) *Solution {
	s := &Solution{onNodes: make([]pack.Load, len(p.Nodes)), Left: p.Demand()}
	empty := make(pack.Load, len(p.Shapes))
	for i := range s.onNodes {
		s.onNodes[i] = empty
	}
	return s
}

func (s *Solution) clone() *Solution {
	return &Solution{Left: slices.Clone(s.Left), Machines: slices.Clone(s.Machines), onNodes: slices.Clone(s.onNodes)}
}

func (s *Solution) cost(p *pack.Problem) pack.Cost {
	c := pack.Cost{Left: s.Left.Total(), Machines: int64(len(s.Machines))}
	for _, m := range s.Machines {
		c.Price += p.Offers[m.Offer].Price
	}
	return c
}

// limits returns what the machines of s leave of the limits and the stocks.
func (s *Solution) limits(p *pack.Problem) pack.Limits {
	left := p.Limits.Clone()
	for _, m := range s.Machines {
		left.Launch(&p.Offers[m.Offer].Charge)
	}
	return left
}

// withinLimits reports whether the machines of s are within the limits and the stocks.
func (s *Solution) withinLimits(p *pack.Problem) bool { return s.limits(p).Kept(p.Limits) }

// PlanOf returns the plan of a solution. Pods are assigned in the order of their names: first to nodes, then to launches. The last ones are not placed.
func PlanOf(p *pack.Problem, s *Solution) planner.Plan {
	next := make([]int, len(p.Shapes))
	names := p.InTurn(next)
	var plan planner.Plan
	for i, l := range s.onNodes {
		if !l.Empty() {
			pods, gpus := names.Pick(&p.Nodes[i].Capacity, l)
			plan.Placements = append(plan.Placements, planner.Placement{Node: p.Nodes[i].Index, Pods: pods, GPUs: gpus})
		}
	}
	// This is a copy, because the order of the machines is part of a search that may continue.
	machines := slices.Clone(s.Machines)
	slices.SortStableFunc(machines, func(a, b Machine) int {
		return cmp.Or(cmp.Compare(a.Offer, b.Offer), -slices.Compare(a.Load, b.Load))
	})
	for _, m := range machines {
		o := &p.Offers[m.Offer]
		pods, gpus := names.Pick(&o.Capacity, m.Load)
		plan.Launches = append(plan.Launches, planner.Launch{Offering: o.Index, Pods: pods, GPUs: gpus})
		plan.Price += planner.MicroUSD(o.Price)
	}
	plan.Unplaced = append(plan.Unplaced, p.Refused...)
	left := s.limits(p)
	for k := range p.Shapes {
		why := map[int]planner.Refusal{}
		for _, pod := range p.Shapes[k].Pods[next[k]:] {
			r, ok := why[pod.Class]
			if !ok {
				r = p.Refusal(&p.Shapes[k], p.Snapshot.Classes[pod.Class], left)
				why[pod.Class] = r
			}
			plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod.Name, Refusal: r})
		}
	}
	nodes := p.Snapshot.Nodes
	slices.SortStableFunc(plan.Placements, func(a, b planner.Placement) int { return strings.Compare(nodes[a.Node].Name, nodes[b.Node].Name) })
	slices.SortStableFunc(plan.Unplaced, func(a, b planner.Unplaced) int { return strings.Compare(a.Pod, b.Pod) })
	return plan
}
