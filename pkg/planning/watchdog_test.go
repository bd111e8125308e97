package planning

import (
	"errors"
	"testing"
	"testing/synctest"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
	"karve.sh/karve/pkg/watchdog"
)

func (b testbed) watched() *watchdog.Watchdog {
	b.Watchdog = watchdog.New(watchdog.Limit, watchdog.Store{}, b.Metrics.StepOverruns, b.Metrics.SetAside)
	return b.Watchdog
}

func TestViewWithoutEndIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed()
		forever := make(chan struct{})
		defer close(forever)
		b.watched().Inject = func(step watchdog.Step, o watchdog.Object) {
			if step == watchdog.View && o.Name == "default/web-003" {
				<-forever
			}
		}
		var over *watchdog.OverrunError
		if _, err := b.Of(t.Context(), read(1, 11)); !errors.As(err, &over) || over.Object.Name != "default/web-003" {
			t.Errorf("got %v", err)
		}
	})
}

// Planning, or the check of a plan, does not end while a class is planned for.
func TestClassWithWhichPlanDoesNotEndIsLeftOut(t *testing.T) {
	t.Parallel()
	for _, step := range []watchdog.Step{watchdog.Plan, watchdog.Check} {
		synctest.Test(t, func(t *testing.T) {
			b := newTestbed()
			w := b.watched()
			cluster := Shared()
			cluster.Pods = append(Pods("web", 11), Pod("odd", Asking("cpu", "777m", "nvidia.com/gpu.shared", "1")))
			view := snapshot.Build(cluster)
			forever := make(chan struct{})
			defer close(forever)
			with, _ := b.search(t.Context(), b.clock.Now(), 1)
			odd, built := false, with.Built
			with.Built = func() {
				if built(); odd && step == watchdog.Check {
					<-forever
				}
			}
			kept, plan, outcome := with.Contain(view.Snapshot, nil, func(s planner.Snapshot, solver solve.Solver) planner.Plan {
				odd = false
				for _, class := range s.Classes {
					odd = odd || class.Requests.MilliCPU == 777 && class.Blocked == nil
				}
				if odd && step == watchdog.Plan {
					<-forever
				}
				return solver.Plan(s)
			})
			if outcome.Err != nil || len(plan.Launches) != 2 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Reason != planner.ReasonSetAside {
				t.Fatalf("%s: want machines for the others: %+v, %v", step, plan, outcome.Err)
			}
			view.Snapshot = kept
			b.setAside(&view, outcome.Aside, b.clock.Now())
			if entries := w.Entries(); len(entries) != 1 || entries[0].Name != "default/odd" {
				t.Errorf("%s: set aside: %+v", step, entries)
			}
		})
	}
}
