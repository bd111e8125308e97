package solve_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// distinct returns a snapshot of pods that all have different requests.
func distinct(pods int) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10)}
	for i := range pods {
		c := plantest.Class(s, fmt.Sprintf("pod-%05d", i), 1, plantest.Request(int64(100+i*37%4000), int64(200+i), 1))
		c.GPUMemoryBytes = int64(i%7) * 1000 * plantest.Mi
		s.Classes = append(s.Classes, c)
	}
	return s
}

func TestPlanPlacesThousandsOfDistinctPods(t *testing.T) {
	t.Parallel()
	s := distinct(2000)
	first := planner.Plan{}
	p := solve.Solver{Effort: 20_000, First: func(p planner.Plan) { first = p }}.Plan(s)
	if err := check.Plan(s, p); err != nil {
		t.Fatal(err)
	}
	if len(p.Unplaced) > 0 || len(first.Launches) == 0 || p.Price > first.Price {
		t.Errorf("%d pods have no place, price %d after %d at first", len(p.Unplaced), p.Price, first.Price)
	}
}

func BenchmarkBuild10000DistinctPods(b *testing.B) { benchmark(b, distinct(10_000)) }
