package planning

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// testbed is a planner whose clock the test controls.
type testbed struct {
	*Planner
	clock    *clocktesting.FakePassiveClock
	registry *prometheus.Registry
}

func newTestbed() testbed {
	clock, registry := clocktesting.NewFakePassiveClock(Now), prometheus.NewRegistry()
	return testbed{&Planner{Clock: clock, Metrics: metrics.New(registry), Budget: time.Second}, clock, registry}
}

// of returns the generation of a cluster.
func (b testbed) of(t testing.TB, c *snapshot.Cluster) *Generation {
	t.Helper()
	g, err := b.Of(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestPodsThatBreakPlanAreLeftOut(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	cluster := Shared()
	cluster.Pods = append(Pods("web", 11), Pod("odd", Asking("cpu", "777m", "nvidia.com/gpu.shared", "1")))
	odd := func(s planner.Snapshot) bool {
		for _, class := range s.Classes {
			if class.Requests.MilliCPU == 777 && class.Blocked == nil {
				return true
			}
		}
		return false
	}
	for range 2 {
		s := snapshot.Build(cluster).Snapshot
		with, _ := b.search(t.Context(), b.clock.Now())
		kept, plan, outcome := with.contain(s, nil, func(s planner.Snapshot, solver solve.Solver) planner.Plan {
			plan := solver.Plan(s)
			if odd(s) {
				plan.Price++
			}
			return plan
		})
		if outcome.Err != nil || odd(kept) || len(plan.Launches) != 2 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Reason != planner.ReasonSetAside {
			t.Fatalf("want machines for the others: %+v, %v", plan, outcome.Err)
		}
		b.note(t.Context(), "pods", s, outcome)
	}
	if n := testutil.CollectAndCount(b.registry, "karve_planner_classes_set_aside_total"); n != 1 {
		t.Errorf("%d reasons are counted, want one", n)
	}
	if n := testutil.ToFloat64(b.Metrics.PlansRejected); n != 2 {
		t.Errorf("%v plans were rejected, want 2", n)
	}
}

func TestInvalidPlansPlaceNothing(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	cluster := Shared()
	cluster.Pods = Pods("web", 11)
	with, _ := b.search(t.Context(), b.clock.Now())
	kept, _, outcome := with.contain(snapshot.Build(cluster).Snapshot, nil, func(planner.Snapshot, solve.Solver) planner.Plan {
		return planner.Plan{Price: 1}
	})
	if outcome.Err == nil || !outcome.rejected {
		t.Fatalf("want no plan: %+v", outcome)
	}
	if plan := nothing(kept, outcome.Err); len(plan.Unplaced) != 11 || len(plan.Launches)+len(plan.Placements) > 0 {
		t.Errorf("want no place for any pod: %+v", plan)
	}
	b.note(t.Context(), "pods", kept, outcome)
	if n := testutil.ToFloat64(b.Metrics.PlansRejected); n != 1 {
		t.Errorf("%v plans were rejected, want 1", n)
	}
}

func TestSupposeSetsAsideOnlyPodThatBreaksPlan(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = append(Pods("web", 3), Pod("broken", Asking("cpu", "1", "memory", "1Gi", "nvidia.com/gpu.shared", "1")))
	view := snapshot.Build(c)
	for i := range view.Classes {
		if view.Classes[i].Pods[0] == "default/broken" {
			view.Classes[i].Requests.MilliCPU = -1
		}
	}
	plan, _ := Suppose(view, 0)
	if len(plan.Unplaced) != 1 || plan.Unplaced[0].Pod != "default/broken" || plan.Unplaced[0].Reason != planner.ReasonSetAside {
		t.Errorf("unplaced: %+v, want the broken pod alone", plan.Unplaced)
	}
	placed := 0
	for _, l := range plan.Launches {
		placed += len(l.Pods)
	}
	if placed != 3 {
		t.Errorf("%d pods have a place, want 3", placed)
	}
}

// A quota of the snapshot affects all pods.
func TestSupposePlacesNothingWithoutValidPlan(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = Pods("web", 3)
	view := snapshot.Build(c)
	view.Quotas = []planner.Quota{{Name: "broken", Each: -1}}
	if planner.Validate(view.Snapshot) == nil {
		t.Fatal("the snapshot is valid")
	}
	if plan, _ := Suppose(view, 0); plan.Err == nil || len(plan.Unplaced) != 3 || len(plan.Launches) > 0 {
		t.Errorf("plan: %+v, want no places", plan.Plan)
	}
}
