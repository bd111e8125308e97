package checked

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

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
