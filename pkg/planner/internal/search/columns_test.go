package search_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/search"
	"karve.sh/karve/pkg/planner/plantest"
)

// TestNothingIsLostWhereAPartOfALoadIsNotFoundGPUs launches for loads of many GPUs that are full: without one pod, what was packed at once may not be packed
// any more, in as many steps as a search for GPUs has.
func TestNothingIsLostWhereAPartOfALoadIsNotFoundGPUs(t *testing.T) {
	t.Parallel()
	const gpus = 7
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("a")}, Offerings: []planner.Offering{{
		InstanceType: "x", Price: 100, Physical: planner.Physical{Nodes: 1},
		Free: planner.Resources{MilliCPU: 1000, Pods: 1000, Replicas: 100 * gpus},
	}}}
	for range gpus {
		s.Offerings[0].GPUs = append(s.Offerings[0].GPUs, planner.GPU{Replicas: 100, MemoryBytes: 1000})
	}
	for k, memory := range []int64{329, 441, 383, 443, 302, 404, 392, 131, 271, 243, 310, 149, 161} {
		c := plantest.Class(s, fmt.Sprint("class-", k), 10, planner.Resources{MilliCPU: 1, Pods: 1, Replicas: 1})
		c.GPUMemoryBytes = memory
		s.Classes = append(s.Classes, c)
	}
	without, lost := search.LaunchedParts(s, 200)
	if lost != nil {
		t.Errorf("of %v something neither waits nor is launched for on GPUs", lost)
	}
	if without == 0 {
		t.Error("all parts of all loads are found GPUs for")
	}
}
