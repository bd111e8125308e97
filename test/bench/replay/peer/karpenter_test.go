package peer_test

import (
	"slices"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/test/bench/replay/peer"
)

// fleet returns a layout with one machine of each named type, which holds the given number of pods of one CPU.
func fleet(t *testing.T, machines map[string]int) consolidate.Layout {
	t.Helper()
	s := workload.Snapshot(workload.Identical(100), workload.Types(workload.G4dn, 10))
	var plan planner.Plan
	next := 0
	for i, o := range s.Offerings {
		if n := machines[o.InstanceType]; n > 0 {
			plan.Launches = append(plan.Launches, planner.Launch{Offering: i, Pods: s.Classes[0].Pods[next : next+n]})
			next += n
		}
	}
	return workload.Thinned(s, plan, 0, 20_000, 1)
}

func pods(l consolidate.Layout) []string {
	var out []string
	for _, m := range l.Machines {
		for _, pod := range m.Pods {
			out = append(out, pod.Name)
		}
	}
	slices.Sort(out)
	return out
}

func TestKarpenterMergesMachinesButSplitsNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		machines  map[string]int
		price     planner.MicroUSD
		evictions int
	}{
		{"a machine whose pods fit elsewhere goes", map[string]int{"g4dn.xlarge": 1, "g4dn.2xlarge": 3}, 752_000, 1},
		{"a cheaper machine replaces two", map[string]int{"g4dn.2xlarge": 1, "g4dn.4xlarge": 2}, 526_000, 3},
		{"a large machine stays although two small ones are cheaper", map[string]int{"g4dn.12xlarge": 11}, 3_912_000, 0},
		{"metal with many pods stays", map[string]int{"g4dn.metal": 41}, 7_824_000, 0},
	} {
		l := fleet(t, c.machines)
		k := peer.Karpenter(l)
		if plantest.Price(k.Layout) != c.price || k.Evictions != c.evictions {
			t.Errorf("%s: it costs %d after %d evictions, want %d after %d", c.name, plantest.Price(k.Layout), k.Evictions, c.price, c.evictions)
		}
		if !slices.Equal(pods(l), pods(k.Layout)) {
			t.Errorf("%s: the set of running pods changed", c.name)
		}
	}
}

func TestKarpenterConsolidationKeepsEveryPod(t *testing.T) {
	t.Parallel()
	types := workload.Types(workload.G4to6, 10)
	s := workload.Snapshot(workload.Mixed(1, workload.Mix{Pods: 200, Shapes: 10, GPUMemory: true}, types), types)
	l := workload.Thinned(s, solve.Plan(s), 0.5, 20_000, 1)
	k := peer.Karpenter(l)
	if err := planner.Validate(k.Layout.Snapshot); err != nil {
		t.Error(err)
	}
	if !slices.Equal(pods(l), pods(k.Layout)) {
		t.Error("the set of running pods changed")
	}
	if plantest.Price(k.Layout) >= plantest.Price(l) || k.Commands == 0 {
		t.Errorf("it costs %d after %d commands, %d before", plantest.Price(k.Layout), k.Commands, plantest.Price(l))
	}
}
