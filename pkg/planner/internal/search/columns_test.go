package search_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/search"
	"karve.sh/karve/pkg/planner/plantest"
)

// TestPodsStayPendingWhenPartialLoadHasNoGPUAssignment launches machines for full loads of many GPUs. Once a pod is removed from a load, the bounded search for
// GPUs may no longer find an assignment.
func TestPodsStayPendingWhenPartialLoadHasNoGPUAssignment(t *testing.T) {
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
		t.Errorf("pods of load %v are neither pending nor on the GPUs of a launch", lost)
	}
	if without == 0 {
		t.Error("every partial load has a GPU assignment, so the test shows nothing")
	}
}
