package provisioning

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func TestPodsThatBreakPlansAreLeftOutAndTold(t *testing.T) {
	t.Parallel()
	registry, recorder := prometheus.NewRegistry(), events.NewFakeRecorder(100)
	c := New(Config{Metrics: metrics.New(registry), Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(now), PlanBudget: time.Second})
	cluster := snapshottest.Shared()
	cluster.Pods = append(snapshottest.Pods("web", 11), snapshottest.Pod("odd", snapshottest.Asking("cpu", "777m", "nvidia.com/gpu.shared", "1")))
	view := snapshot.Build(cluster)
	odd := func(s planner.Snapshot) bool {
		for _, class := range s.Classes {
			if class.Requests.MilliCPU == 777 && class.Blocked == nil {
				return true
			}
		}
		return false
	}
	for range 2 { // The second time it is no news.
		kept, plan, ok := c.contain(t.Context(), forPods, snapshot.Build(cluster).Snapshot, nil, func(s planner.Snapshot, search solve.Solver) planner.Plan {
			plan := search.Plan(s)
			if odd(s) {
				plan.Price++
			}
			return plan
		})
		if !ok || odd(kept) || len(plan.Launches) != 2 {
			t.Fatalf("want machines for the others: %+v, %t", plan, ok)
		}
		c.tell(&view, plan)
	}
	if n := testutil.CollectAndCount(registry, "karve_planner_classes_set_aside_total"); n != 1 {
		t.Errorf("%d reasons are counted, want one", n)
	}
	if n := testutil.ToFloat64(c.Metrics.PlansRejected); n != 2 {
		t.Errorf("%v plans were rejected, want 2", n)
	}
	if n := len(recorder.Events); n != 1 {
		t.Fatalf("there are %d events, want one", n)
	}
	if got := <-recorder.Events; len(got) < 20 || got[:17] != "Warning SetAside " {
		t.Errorf("the pod is told %q", got)
	}
}

func TestNothingIsLaunchedByAPlannerThatIsNeverRight(t *testing.T) {
	t.Parallel()
	c := New(Config{Metrics: metrics.New(prometheus.NewRegistry()), Clock: clocktesting.NewFakePassiveClock(now), PlanBudget: time.Second})
	cluster := snapshottest.Shared()
	cluster.Pods = snapshottest.Pods("web", 11)
	_, plan, ok := c.contain(t.Context(), forPods, snapshot.Build(cluster).Snapshot, nil, func(planner.Snapshot, solve.Solver) planner.Plan {
		return planner.Plan{Price: 1}
	})
	if ok || len(plan.Launches) > 0 {
		t.Errorf("want no plan: %+v", plan)
	}
}
