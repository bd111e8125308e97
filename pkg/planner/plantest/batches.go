package plantest

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
)

// PlannedOnce returns what the machines cost when the waiting pods of a snapshot come in batches, by their names, and each batch is planned for exactly once, on
// what those before it leave. No clock ends a plan.
func PlannedOnce(s planner.Snapshot, batches [][]string) (planner.MicroUSD, error) {
	s = Clone(s)
	class := map[string]int{}
	for i := range s.Classes {
		for _, pod := range s.Classes[i].Pods {
			class[pod] = i
		}
		s.Classes[i].Pods = nil
	}
	var price planner.MicroUSD
	for n, batch := range batches {
		for _, pod := range slices.Sorted(slices.Values(batch)) {
			i, ok := class[pod]
			if !ok {
				return 0, fmt.Errorf("batch %d: no pod %s waits", n, pod)
			}
			s.Classes[i].Pods = append(s.Classes[i].Pods, pod)
		}
		plan := solve.Plan(s)
		if err := check.Plan(s, plan); err != nil || len(plan.Unplaced) > 0 {
			return 0, fmt.Errorf("batch %d: %d pods without a place (%v)", n, len(plan.Unplaced), err)
		}
		price += plan.Price
		run := func(node int, pods []string) {
			for _, pod := range slices.Clone(pods) {
				Run(&s, node, consolidate.Running{Name: pod, Class: class[pod], GPU: -1})
			}
		}
		for _, p := range plan.Placements {
			run(p.Node, p.Pods)
		}
		for _, l := range plan.Launches {
			run(Launched(&s, l.Offering).Node, l.Pods)
		}
	}
	return price, nil
}
