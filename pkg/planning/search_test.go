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
	"karve.sh/karve/pkg/snapshot/facts"
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
func (b testbed) of(t testing.TB, c *facts.Cluster) *Generation {
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
		with, _ := b.search(t.Context(), b.clock.Now(), 1)
		kept, plan, outcome := with.Contain(s, nil, func(s planner.Snapshot, solver solve.Solver) planner.Plan {
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

func TestInvalidPlansAreRejected(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	cluster := Shared()
	cluster.Pods = Pods("web", 11)
	with, _ := b.search(t.Context(), b.clock.Now(), 1)
	_, _, outcome := with.Contain(snapshot.Build(cluster).Snapshot, nil, func(planner.Snapshot, solve.Solver) planner.Plan {
		return planner.Plan{Price: 1}
	})
	if outcome.Err == nil || !outcome.Rejected {
		t.Fatalf("want no plan: %+v", outcome)
	}
	b.note(t.Context(), "pods", planner.Snapshot{}, outcome)
	if n := testutil.ToFloat64(b.Metrics.PlansRejected); n != 1 {
		t.Errorf("%v plans were rejected, want 1", n)
	}
}
