package disruption

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestPodsThatBreakAPlanLeaveOthersTheirPlaces(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = append(Pods("web", 3), Pod("broken", Asking("cpu", "1", "memory", "1Gi", "nvidia.com/gpu.shared", "1")))
	s := snapshot.Build(c).Snapshot
	for i := range s.Classes {
		if s.Classes[i].Pods[0] == "default/broken" {
			s.Classes[i].Requests.MilliCPU = -1
		}
	}
	_, plan := containedPlan(s, solve.Solver{})
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

// A quota of the snapshot concerns everybody.
func TestWithoutASoundPlanNobodyHasAPlace(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = Pods("web", 3)
	s := snapshot.Build(c).Snapshot
	s.Quotas = []planner.Quota{{Name: "broken", Each: -1}}
	if planner.Validate(s) == nil {
		t.Fatal("the snapshot is valid")
	}
	if _, plan := containedPlan(s, solve.Solver{}); len(plan.Unplaced) != 3 || len(plan.Launches) > 0 {
		t.Errorf("plan: %+v, want no places", plan)
	}
}
