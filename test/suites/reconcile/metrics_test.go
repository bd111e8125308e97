package reconcile

import (
	"testing"
	"time"
)

// measured returns the number of observations of a histogram.
func (w *world) measured(name string) uint64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetHistogram().GetSampleCount()
		}
	}
	return 0
}

func TestMetricsShowAgeOfPendingPodsAndClaims(t *testing.T) {
	w := newWorld(t)
	w.shared("waits")
	w.pods("web", 1)
	w.clock.Step(3 * time.Minute)
	w.reconciles(w.provisioning(), "")
	claim := w.wantClaims(1)[0]
	if age := w.counted("karve_pods_oldest_waiting_seconds"); age < 170 || age > 190 {
		t.Errorf("the oldest pod waits for %v seconds, want about 180", age)
	}
	if at := w.counted("karve_planner_last_plan_timestamp_seconds"); at != float64(w.clock.Now().Unix()) {
		t.Errorf("the last plan was made at %v, want now, %d", at, w.clock.Now().Unix())
	}
	w.clock.Step(5 * time.Minute)
	w.reconcilesPools(w.poolController())
	if n, age := w.counted("karve_pool_nodeclaims"), w.counted("karve_pool_nodeclaims_oldest_seconds"); n != 1 || age < 470 || age > 500 {
		t.Errorf("%v NodeClaims, the oldest of %v seconds; want %s of about 480", n, age, claim.Name)
	}
	w.reconciles(w.disruption(), "")
	if gathered, looked := w.measured("karve_gather_duration_seconds"), w.measured("karve_disruption_duration_seconds"); gathered != 3 || looked != 1 {
		t.Errorf("the cluster was read %d times and disruption looked %d times, want 3 and 1", gathered, looked)
	}
}
