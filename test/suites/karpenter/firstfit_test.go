package karpenter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/test/harness/karpenter"
)

// shared is the path of the data that is not in the repository.
const shared = "../../../../shared/"

type scenario struct {
	name string
	planner.Snapshot
}

// scenarios returns the scenarios of the first comparison with Karpenter's packing, as the prototype drew them.
func scenarios(t *testing.T) []scenario {
	t.Helper()
	g4, g46 := workload.Types(workload.G4dn, 10), workload.Types(workload.G4to6, 10)
	var out []scenario
	add := func(name string, pods []workload.Pods, types []workload.Type) {
		out = append(out, scenario{name, workload.Snapshot(pods, types)})
	}
	for _, n := range []int{5, 11, 41, 45, 50, 80, 100, 160} {
		add(fmt.Sprintf("identical %d g4dn", n), workload.Identical(n), g4)
	}
	for _, n := range []int{11, 41, 80} {
		add(fmt.Sprintf("identical %d g4dn,g5,g6,g6e,gr6 no metal", n), workload.Identical(n), workload.WithoutMetal(g46))
	}
	for seed := int64(1); seed <= 5; seed++ {
		add(fmt.Sprintf("mixed m5 n50 g4dn s%d", seed), workload.Mixed(seed, workload.Mix{Pods: 50, Shapes: 5}, g4), g4)
	}
	for seed := int64(1); seed <= 5; seed++ {
		add(fmt.Sprintf("mixed m20 n1000 g4-6 s%d", seed), workload.Mixed(seed, workload.Mix{Pods: 1000, Shapes: 20}, g46), g46)
	}
	if pods, err := workload.Openb(shared + "data/openb-shared-pods.csv.gz"); err == nil {
		add("openb count R=4 g4dn", workload.Shaped(pods, workload.Count), workload.Types(workload.G4dn, 4))
		add("openb count R=10 g4-6", workload.Shaped(pods, workload.Count), g46)
	} else {
		t.Logf("without the two scenarios of the openb trace: %v", err)
	}
	return out
}

func TestFirstFitCostsExactlyWhatKarpenterCosts(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			theirs, took, err := karpenter.Plan(t.Context(), s.Snapshot, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := check.Plan(s.Snapshot, theirs); err != nil {
				t.Fatalf("Karpenter's own plan: %v", err)
			}
			ours := firstfit.Plan(s.Snapshot)
			if err := check.Plan(s.Snapshot, ours); err != nil {
				t.Fatal(err)
			}
			t.Logf("Karpenter %d in %v, FirstFit %d, %d machines", theirs.Price, took, ours.Price, len(ours.Launches))
			if ours.Price != theirs.Price || len(ours.Launches) != len(theirs.Launches) {
				t.Errorf("FirstFit takes %d machines at %d, Karpenter %d at %d", len(ours.Launches), ours.Price, len(theirs.Launches), theirs.Price)
			}
		})
	}
}

func TestScenariosMatchPrototype(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(shared + "prototype/realkarp/scenarios.json")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the prototype is not here")
	} else if err != nil {
		t.Fatal(err)
	}
	var want []struct {
		Name string
		Like float64
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	have := scenarios(t)
	if len(have) != len(want) {
		t.Fatalf("there are %d scenarios, the prototype has %d", len(have), len(want))
	}
	for i, w := range want {
		if price := firstfit.Plan(have[i].Snapshot).Price; have[i].name != w.Name || price != planner.MicroUSD(w.Like*1e6+0.5) {
			t.Errorf("%s costs %d, the prototype's %s %f", have[i].name, price, w.Name, w.Like)
		}
	}
}
