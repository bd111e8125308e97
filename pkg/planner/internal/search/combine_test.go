package search_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/search"
	"karve.sh/karve/pkg/planner/plantest"
)

// severalGPUs draws one offering with several GPUs, and a few pods that all state device memory.
func severalGPUs(t *rapid.T) planner.Snapshot {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	gpus, shared := rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "GPUs"), n("shared by", 1, 4)
	s := planner.Snapshot{
		Pools: []planner.Pool{plantest.Pool("a")},
		Offerings: []planner.Offering{{
			InstanceType: "several", Price: 100, Physical: planner.Physical{Nodes: 1},
			Free: planner.Resources{
				MilliCPU: int64(n("cpu", 4, 30)), MemoryBytes: int64(n("memory", 4, 30)), EphemeralBytes: int64(n("disk", 4, 30)),
				Pods: int64(n("most pods", 2, 9)), Replicas: int64(gpus * shared),
			},
			GPUs: slices.Repeat([]planner.GPU{{Replicas: int64(shared), MemoryBytes: int64(n("device memory", 2, 12))}}, gpus),
		}},
	}
	for i := range n("classes", 1, 4) {
		c := plantest.Class(s, fmt.Sprint("class-", i), n("pods", 1, 5), planner.Resources{
			MilliCPU: int64(n("asks cpu", 0, 8)), MemoryBytes: int64(n("asks memory", 0, 8)), EphemeralBytes: int64(n("asks disk", 0, 3)),
			Pods: 1, Replicas: int64(n("asks replicas", 0, 2)),
		})
		c.GPUMemoryBytes = int64(n("asks device memory", 1, 8))
		s.Classes = append(s.Classes, c)
	}
	return s
}

// combinationHolds checks that no load is worth more than the bound, and that the load found is worth at most the maximum. With many parts, the load found
// meets the bound.
func combinationHolds(t *rapid.T) {
	s := severalGPUs(t)
	worths := rapid.SliceOfN(rapid.Int64Range(0, 1000), len(s.Classes), len(s.Classes)).Draw(t, "worths")
	for _, parts := range []int{1, 3, 2000} {
		most, found, upper, ok := search.MostOnGPUs(s, worths, parts)
		if ok && (found > most || most > upper) {
			t.Fatalf("with %d parts: found %d, the most is %d, the bound %d: want them in this order", parts, found, most, upper)
		}
		if ok && parts == 2000 && found < upper {
			t.Fatalf("with %d parts: found %d, the bound is %d", parts, found, upper)
		}
	}
}

func TestBoundForMultiGPUMachineHolds(t *testing.T) { properties.Check(combinationHolds)(t) }
func FuzzCombination(f *testing.F)                  { f.Fuzz(rapid.MakeFuzz(combinationHolds)) }

func TestSearchFindsBestLoadOfMultiGPUMachine(t *testing.T) {
	t.Parallel()
	// Each of the two GPUs alone would take the pair of 6 and 4, worth 11, but the CPU suffices for only one such pair.
	s := planner.Snapshot{
		Pools: []planner.Pool{plantest.Pool("a")},
		Offerings: []planner.Offering{{
			InstanceType: "several", Price: 100, Physical: planner.Physical{Nodes: 1},
			Free: planner.Resources{MilliCPU: 30, Pods: 100, Replicas: 8},
			GPUs: slices.Repeat([]planner.GPU{{Replicas: 4, MemoryBytes: 10}}, 2),
		}},
	}
	for _, c := range []struct{ cpu, memory int64 }{{10, 6}, {12, 4}, {4, 5}} {
		class := plantest.Class(s, fmt.Sprint(c), 20, planner.Resources{MilliCPU: c.cpu, Pods: 1, Replicas: 1})
		class.GPUMemoryBytes = c.memory
		s.Classes = append(s.Classes, class)
	}
	// The shapes are ordered by name: (10 6), (12 4), (4 5).
	most, found, upper, ok := search.MostOnGPUs(s, []int64{6, 5, 3}, 100)
	if !ok || most != 17 || found != most || upper != most {
		t.Errorf("combined: %t, found %d, the most is %d, the bound %d, want 17 each", ok, found, most, upper)
	}
}
