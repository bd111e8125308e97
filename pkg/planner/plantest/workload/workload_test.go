package workload_test

import (
	"errors"
	"io/fs"
	"math"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest/workload"
)

// costs checks the cost of Karpenter's packing of a workload, in dollars per hour to the cent. The figures come from the prototype. A change of a generator
// breaks the comparison with them.
func costs(t *testing.T, name string, s planner.Snapshot, want float64) {
	t.Helper()
	p := firstfit.Plan(s)
	if err := check.Plan(s, p); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if got := float64(p.Price) / 1e6; math.Abs(got-want) > 0.0051 {
		t.Errorf("%s costs %.3f, it did %.2f", name, got, want)
	}
}

func TestMixesCostTheSameAsInPrototype(t *testing.T) {
	t.Parallel()
	g46 := workload.Types(workload.G4to6, 10)
	all := workload.Types(nil, 10)
	thousand := workload.Mix{Pods: 1000, Shapes: 20, GPUMemory: true, Pinned: true}
	tenThousand := workload.Mix{Pods: 10_000, Shapes: 50, GPUMemory: true, Pinned: true}
	costs(t, "1,000 pods, seed 1", workload.Snapshot(workload.Mixed(1, thousand, g46), g46), 866.87)
	costs(t, "1,000 pods, seed 5", workload.Snapshot(workload.Mixed(5, thousand, g46), g46), 840.57)
	costs(t, "10,000 pods, seed 1", workload.Snapshot(workload.Mixed(1, tenThousand, g46), g46), 7867.38)
	costs(t, "10,000 pods, seed 4", workload.Snapshot(workload.Mixed(4, tenThousand, g46), g46), 6283.94)
	spread := workload.Spread(all, 3, 7)
	costs(t, "282 offerings, seed 3", workload.Snapshot(workload.Mixed(3, tenThousand, spread), spread), 9609.89)
	spread = append(spread, workload.Spread(all, 3, 8)...)
	costs(t, "564 offerings, seed 2", workload.Snapshot(workload.Mixed(2, tenThousand, spread), spread), 5143.035)
}

func TestTraceMappingsCostTheSameAsInPrototype(t *testing.T) {
	t.Parallel()
	pods, err := workload.Openb("../../../../../shared/data/openb-shared-pods.csv.gz")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the trace is not here")
	} else if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mapping  workload.Mapping
		replicas int64
		families []string
		want     float64
	}{
		{workload.Memory, 20, workload.G4dn, 2378.50},
		{workload.Memory, 20, workload.G4to6, 3735.77},
		{workload.Slots, 20, workload.G4dn, 2405.88},
		{workload.Slots, 20, workload.G4to6, 2924.96},
		{workload.Count, 4, workload.G4dn, 1619.57},
		{workload.Count, 4, workload.G4to6, 2750.97},
		{workload.Count, 10, workload.G4dn, 1619.57},
		{workload.Count, 10, workload.G4to6, 2418.01},
	} {
		costs(t, string(c.mapping), workload.Snapshot(workload.Shaped(pods, c.mapping), workload.Types(c.families, c.replicas)), c.want)
	}
}
