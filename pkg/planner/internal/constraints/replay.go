package constraints

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// replay plans as if the nodes that equal new machines of an offering did not exist, and uses them in place of launches, as the plain solver does. Right after
// a plan was carried out, the same plan comes out again and finds its machines. It returns the given plan if that is no worse.
func (a *arranger) replay(s planner.Snapshot, plan planner.Plan) planner.Plan {
	fresh := freshNodes(s)
	if plan.Price == 0 || len(fresh) == 0 || a.stopped() {
		return plan
	}
	isFresh := make([]bool, len(s.Nodes))
	for _, v := range fresh {
		isFresh[v] = true
	}
	past := s
	past.Classes = slices.Clone(s.Classes)
	for c := range past.Classes {
		past.Classes[c].Nodes = slices.DeleteFunc(slices.Clone(s.Classes[c].Nodes), func(v int) bool { return isFresh[v] })
	}
	then := arranger{solver: a.solver, given: past}
	again := a.solver.OrFirstFit(past, then.rest(past, then.arrange(past)))
	Sort(past, &again)
	class := map[string]int{}
	for c := range s.Classes {
		for _, pod := range s.Classes[c].Pods {
			class[pod] = c
		}
	}
	var left []planner.Launch
	for _, l := range again.Launches {
		at := slices.IndexFunc(fresh, func(v int) bool {
			return standsFor(s, v, l) && !slices.ContainsFunc(l.Pods, func(pod string) bool {
				_, admitted := slices.BinarySearch(s.Classes[class[pod]].Nodes, v)
				return !admitted
			})
		})
		if at < 0 {
			left = append(left, l)
			continue
		}
		again.Placements = append(again.Placements, planner.Placement{Node: fresh[at], Pods: l.Pods, GPUs: l.GPUs})
		again.Price -= s.Offerings[l.Offering].Price
		fresh = slices.Delete(fresh, at, at+1)
	}
	again.Launches = left
	if cmp.Or(cmp.Compare(len(again.Unplaced), len(plan.Unplaced)), cmp.Compare(again.Price, plan.Price)) < 0 {
		return again
	}
	return plan
}

// freshNodes returns the nodes that have all capacity of an offering and no pods that a rule counts, in the order of their names.
func freshNodes(s planner.Snapshot) []int {
	var out []int
	for v := range s.Nodes {
		counted := slices.ContainsFunc(s.Rules, func(r planner.Rule) bool {
			return r.Topology == planner.PerNode && v < len(r.Present) && r.Present[v] > 0
		})
		if !counted && slices.ContainsFunc(s.Offerings, func(o planner.Offering) bool { return asNew(s.Nodes[v], o) }) {
			out = append(out, v)
		}
	}
	slices.SortStableFunc(out, func(v, w int) int { return cmp.Compare(s.Nodes[v].Name, s.Nodes[w].Name) })
	return out
}

// asNew reports whether a node has exactly the capacity and domains of a machine of an offering.
func asNew(n planner.Node, o planner.Offering) bool {
	return n.Free == o.Free && slices.Equal(n.GPUs, o.GPUs) && slices.Equal(n.Quotas, o.Quotas) && slices.Equal(n.Domains, o.Domains)
}

// standsFor reports whether a node equals a new machine of a launch or of one of its alternatives.
func standsFor(s planner.Snapshot, v int, l planner.Launch) bool {
	return slices.ContainsFunc(append([]int{l.Offering}, l.Alternatives...), func(i int) bool { return asNew(s.Nodes[v], s.Offerings[i]) })
}
