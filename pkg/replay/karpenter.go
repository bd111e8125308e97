package replay

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/firstfit"
)

// maxCandidates is how many machines Karpenter considers together.
const maxCandidates = 100

// KarpenterStep returns the next command of a model of Karpenter's consolidation, and whether there is one. The model has the algorithm of Karpenter's multi-node
// and single-node consolidation under its default policy and without budgets (kubernetes-sigs/karpenter 2266468, as in v1.14.1), and does not use its code.
// Unlike Karpenter, the model knows replicas and the memory of each GPU. The layout must not have empty machines, which Karpenter removes before.
//
// Candidates are sorted by price / (pods + 1). A binary search finds the longest prefix of up to 100 candidates whose pods all fit on other machines and on at
// most one new machine. The new machine must be cheaper than the prefix and, if its type is in the prefix, cheaper than the cheapest machine of that type. If
// there is no such prefix, the model takes the first single machine whose pods fit in the same way. [firstfit.Plan] decides where pods go, as Karpenter's
// scheduler does. Pending pods are ignored.
func KarpenterStep(l consolidate.Layout) (consolidate.Step, bool) {
	order := make([]int, len(l.Machines))
	for i := range order {
		order[i] = i
	}
	perPod := func(i int) float64 { return float64(l.Machines[i].Price) / float64(1+len(l.Machines[i].Pods)) }
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(perPod(b), perPod(a)), cmp.Compare(l.Snapshot.Nodes[l.Machines[a].Node].Name, l.Snapshot.Nodes[l.Machines[b].Node].Name))
	})
	var best consolidate.Step
	found := false
	if len(order) >= 2 {
		low, high := 1, min(len(order)-1, maxCandidates)
		for low <= high {
			middle := (low + high) / 2
			if step, ok := command(l, order[:middle+1]); ok {
				best, found = step, true
				low = middle + 1
			} else {
				high = middle - 1
			}
		}
	}
	for i := 0; i < len(order) && !found; i++ {
		best, found = command(l, order[i:i+1])
	}
	return best, found
}

// command returns the step that removes the machines, and whether Karpenter would take it.
func command(l consolidate.Layout, leave []int) (consolidate.Step, bool) {
	step := consolidate.Step{Leave: slices.Sorted(slices.Values(leave))}
	for _, i := range leave {
		step.Saving += l.Machines[i].Price
		for _, pod := range l.Machines[i].Pods {
			step.Moves += pod.Move
		}
	}
	plan := firstfit.Plan(l.Freed(leave))
	if len(plan.Unplaced) > 0 || len(plan.Launches) > 1 {
		return step, false
	}
	limit := step.Saving
	if len(leave) > 1 && len(plan.Launches) == 1 {
		limit = min(limit, sameType(l, leave, plan.Launches[0]))
	}
	if plan.Price >= limit {
		return step, false
	}
	step.Saving -= plan.Price
	step.Launches, step.Placements = plan.Launches, plan.Placements
	return step, true
}

// sameType returns the price of the cheapest removed machine whose type the launch may have. Types are distinguished by their prices.
func sameType(l consolidate.Layout, leave []int, x planner.Launch) planner.MicroUSD {
	cheapestYet := planner.MicroUSD(planner.Unlimited)
	s := l.Snapshot
	s.Classes = slices.Clone(s.Classes)
	s.Nodes = nil
	for c := range s.Classes {
		s.Classes[c].Nodes = nil
		s.Classes[c].Pods = slices.DeleteFunc(namesOf(l, leave, c), func(pod string) bool { return !slices.Contains(x.Pods, pod) })
	}
	seen := map[planner.MicroUSD]bool{}
	for _, i := range leave {
		price := l.Machines[i].Price
		if seen[price] || price >= cheapestYet {
			continue
		}
		seen[price] = true
		one := s
		one.Classes = slices.Clone(s.Classes)
		for c := range one.Classes {
			one.Classes[c].Offerings = slices.DeleteFunc(slices.Clone(s.Classes[c].Offerings), func(o int) bool { return s.Offerings[o].Price != price })
		}
		if p := firstfit.Plan(one); len(p.Unplaced) == 0 && len(p.Launches) == 1 {
			cheapestYet = price
		}
	}
	return cheapestYet
}

// namesOf returns the sorted names of the pods of a class on the machines.
func namesOf(l consolidate.Layout, machines []int, class int) []string {
	var out []string
	for _, i := range machines {
		for _, pod := range l.Machines[i].Pods {
			if pod.Class == class {
				out = append(out, pod.Name)
			}
		}
	}
	slices.Sort(out)
	return out
}
