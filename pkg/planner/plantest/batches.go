package plantest

import (
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
)

// Batch has the names of the pods that are planned together. Early has the pods that the scheduler bound before there was a plan for them, in order of arrival.
type Batch struct{ Early, Planned []string }

// PlannedOnce returns the price of the machines if the pending pods of a snapshot arrive in batches, and each batch is planned exactly once with the
// capacity that the previous batches leave. If spread is true, early pods first go to machines of earlier batches that have room, as the scheduler
// would place them. The other early pods are planned with their batch. No clock ends a plan.
func PlannedOnce(s planner.Snapshot, batches []Batch, spread bool) (planner.MicroUSD, error) {
	s = Clone(s)
	class := s.ClassByPod()
	for i := range s.Classes {
		s.Classes[i].Pods = nil
	}
	var has []planner.Resources // the capacity of the nodes when they were empty
	for i := range s.Nodes {
		has = append(has, s.Nodes[i].Free)
	}
	run := func(node int, pods ...string) {
		for _, pod := range slices.Clone(pods) {
			Run(&s, node, consolidate.Running{Name: pod, Class: class[pod], GPU: -1})
		}
	}
	var price planner.MicroUSD
	for n, batch := range batches {
		waiting := slices.Clone(batch.Planned)
		for _, pod := range batch.Early {
			if node := leastAllocated(&s, has, class[pod]); spread && node >= 0 {
				run(node, pod)
			} else {
				waiting = append(waiting, pod)
			}
		}
		for _, pod := range slices.Sorted(slices.Values(waiting)) {
			i, ok := class[pod]
			if !ok {
				return 0, fmt.Errorf("batch %d: no pod %s waits", n, pod)
			}
			s.Classes[i].Pods = append(s.Classes[i].Pods, pod)
		}
		plan := solve.Plan(s)
		if err := check.Plan(s, plan); err != nil {
			return 0, fmt.Errorf("batch %d: %w", n, err)
		}
		if len(plan.Unplaced) > 0 {
			return 0, fmt.Errorf("batch %d: %d pods without a place", n, len(plan.Unplaced))
		}
		price += plan.Price
		for _, p := range plan.Placements {
			run(p.Node, p.Pods...)
		}
		for _, l := range plan.Launches {
			node := Launched(&s, l.Offering).Node
			has = append(has, s.Nodes[node].Free)
			run(node, l.Pods...)
		}
	}
	return price, nil
}

// leastAllocated returns the node with room for a pod of a class that the default scheduler scores highest, by NodeResourcesFit and
// NodeResourcesBalancedAllocation. It returns -1 if none has room.
func leastAllocated(s *planner.Snapshot, has []planner.Resources, class int) int {
	c := &s.Classes[class]
	best, most := -1, 0.0
	for _, node := range c.Nodes {
		free := s.Nodes[node].Free
		if free.MilliCPU < c.Requests.MilliCPU || free.MemoryBytes < c.Requests.MemoryBytes || free.Replicas < c.Requests.Replicas || free.Pods < c.Requests.Pods {
			continue
		}
		used := func(more int64) (cpu, memory float64) {
			return 1 - float64(free.MilliCPU-more*c.Requests.MilliCPU)/float64(has[node].MilliCPU), 1 - float64(free.MemoryBytes-more*c.Requests.MemoryBytes)/float64(has[node].MemoryBytes)
		}
		cpu, memory := used(1)
		before, beforeMemory := used(0)
		score := (2-cpu-memory)/2 + (math.Abs(before-beforeMemory)-math.Abs(cpu-memory))/4
		if best < 0 || score > most {
			best, most = node, score
		}
	}
	return best
}
