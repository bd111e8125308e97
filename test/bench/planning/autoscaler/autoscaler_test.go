package autoscaler_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/test/bench/planning/autoscaler"
)

func TestModelCostsTheSameAsInPrototype(t *testing.T) {
	t.Parallel()
	g4, g46 := workload.Types(workload.G4dn, 10), workload.Types(workload.G4to6, 10)
	for _, c := range []struct {
		name  string
		types []workload.Type
		want  planner.MicroUSD
	}{
		{"g4dn", g4, 9_024_000},
		{"g4dn to g6e", g46, 11_731_200},
	} {
		s := workload.Snapshot(workload.Identical(80), c.types)
		p, err := autoscaler.Plan(s, autoscaler.LeastWaste)
		if err != nil {
			t.Fatal(err)
		}
		if err := check.Plan(s, p); err != nil {
			t.Fatal(err)
		}
		if p.Price != c.want {
			t.Errorf("%s: got %d, want %d", c.name, p.Price, c.want)
		}
	}
}

func TestPlansOfModelKeepEveryRule(t *testing.T) {
	t.Parallel()
	types := workload.Spread(workload.Types(workload.G4to6, 10), 2, 1)
	for seed := range int64(5) {
		s := workload.Snapshot(workload.Mixed(seed, workload.Mix{Shapes: 10, Pods: 300, GPUMemory: true, Pinned: true}, types), types)
		for _, e := range []autoscaler.Expander{autoscaler.LeastWaste, autoscaler.Price} {
			p, err := autoscaler.Plan(s, e)
			if err != nil {
				t.Fatal(err)
			}
			if err := check.Plan(s, p); err != nil {
				t.Errorf("%s, seed %d: %v", e, seed, err)
			}
		}
	}
}
