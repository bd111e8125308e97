package solve_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// benchmark reports the milliseconds per plan, and the gap between the price and the proven bound in percent.
func benchmark(b *testing.B, s planner.Snapshot) {
	b.Helper()
	var p planner.Plan
	for b.Loop() {
		p = solve.Plan(s)
	}
	if err := check.Plan(s, p); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/plan")
	b.ReportMetric(100*float64(p.Price-p.Bound)/float64(max(1, p.Bound)), "%gap")
	b.ReportMetric(float64(p.Price)/1e6, "$/h")
	b.ReportMetric(float64(len(p.Launches)), "machines")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkBuild1000Pods20Shapes(b *testing.B) {
	for seed := range uint64(3) {
		b.Run(fmt.Sprint("seed=", seed), func(b *testing.B) {
			benchmark(b, plantest.Mixed(plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10), 1000, 20, seed))
		})
	}
}

func BenchmarkBuild10000Pods50Shapes(b *testing.B) {
	benchmark(b, plantest.Mixed(plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10), 10_000, 50, 1))
}

func BenchmarkBuild10000IdenticalPods(b *testing.B) {
	benchmark(b, plantest.Identical(plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10), 10_000, plantest.Request(300, 1024, 1)))
}

// BenchmarkBuildAmongBusyNodes plans for a large cluster in which some pods find room.
func BenchmarkBuildAmongBusyNodes(b *testing.B) {
	s := plantest.Mixed(plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10), 300, 15, 1)
	for i := range 500 {
		free := plantest.Request(int64(i*37%700), int64(i*131%2500), int64(i%3))
		s.Nodes = append(s.Nodes, planner.Node{Name: fmt.Sprint("node-", i), Free: free})
		for c := range s.Classes {
			s.Classes[c].Nodes = append(s.Classes[c].Nodes, i)
		}
	}
	benchmark(b, s)
}
