// Package peer has models of what others do about machines that are not full. They are models, not the code of others.
package peer

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest"
)

// maxCandidates is how many machines Karpenter looks at together.
const maxCandidates = 100

// Consolidated is what a model of Karpenter's consolidation made of a layout.
type Consolidated struct {
	Layout consolidate.Layout
	// Commands is how many times machines were given back, empty ones aside, Evictions how many pods had to move for it.
	Commands, Evictions int
}

// Karpenter is a model of Karpenter's consolidation under its default policy, without budgets, to the end: the algorithm of its multi-node and
// single-node consolidation (kubernetes-sigs/karpenter 2266468, as in v1.14.1), told what Karve knows of replicas and of the memory of GPUs.
//
// Empty machines go first. Candidates are sorted by their price for each pod, and one more; a binary search finds the longest prefix of up to 100 of them
// whose pods all find room on other machines and on at most one new one that is cheaper than all of the prefix, and, where it is of a type in the prefix,
// cheaper than the cheapest of that type. Where there is no such prefix, the first single machine is taken whose pods find room in the same way. Where pods
// go is decided by [firstfit.Plan], as Karpenter's scheduler does. Pods that wait are left alone.
func Karpenter(l consolidate.Layout) Consolidated {
	l.Snapshot.Classes = slices.Clone(l.Snapshot.Classes)
	for c := range l.Snapshot.Classes {
		l.Snapshot.Classes[c].Pods = nil
	}
	k := Consolidated{Layout: l}
	for {
		k.Layout, _ = plantest.Drop(k.Layout)
		step, ok := KarpenterStep(k.Layout)
		if !ok {
			return k
		}
		for _, i := range step.Leave {
			k.Evictions += len(k.Layout.Machines[i].Pods)
		}
		k.Commands++
		k.Layout = plantest.After(k.Layout, step)
	}
}

// KarpenterStep is the next command of the model, and whether there is one.
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

// command is what giving back some machines comes to, and whether Karpenter would.
func command(l consolidate.Layout, leave []int) (consolidate.Step, bool) {
	step := consolidate.Step{Leave: slices.Sorted(slices.Values(leave))}
	for _, i := range leave {
		step.Saving += l.Machines[i].Price
		for _, pod := range l.Machines[i].Pods {
			step.Moves += pod.Move
		}
	}
	plan := firstfit.Plan(plantest.Freed(l, leave))
	if len(plan.Unplaced) > 0 || len(plan.Launches) > 1 {
		return step, false
	}
	most := step.Saving
	if len(leave) > 1 && len(plan.Launches) == 1 {
		most = min(most, sameType(l, leave, plan.Launches[0]))
	}
	if plan.Price >= most {
		return step, false
	}
	step.Saving -= plan.Price
	step.Launches, step.Placements = plan.Launches, plan.Placements
	return step, true
}

// sameType is the price of the cheapest machine to give back of a type that what is launched could be. Types are told apart by their prices.
func sameType(l consolidate.Layout, leave []int, x planner.Launch) planner.MicroUSD {
	least := planner.MicroUSD(planner.Unlimited)
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
		if seen[price] || price >= least {
			continue
		}
		seen[price] = true
		one := s
		one.Classes = slices.Clone(s.Classes)
		for c := range one.Classes {
			one.Classes[c].Offerings = slices.DeleteFunc(slices.Clone(s.Classes[c].Offerings), func(o int) bool { return s.Offerings[o].Price != price })
		}
		if p := firstfit.Plan(one); len(p.Unplaced) == 0 && len(p.Launches) == 1 {
			least = price
		}
	}
	return least
}

// namesOf are the pods of a class on some machines, sorted.
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
