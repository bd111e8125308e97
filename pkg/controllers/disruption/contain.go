package disruption

import (
	"karve.sh/karve/pkg/planner"
)

// soundly plans, without the classes of pods for which no plan keeps its own rules, and returns the snapshot that the plan is for. Where there is no sound plan for
// anybody, nobody has a place: no machine whose pods would have to move goes.
func soundly(s planner.Snapshot, search planner.Search) (planner.Snapshot, planner.Plan) {
	kept, plan, _, err := planner.Contain(s, nil, search.Build, func() bool { return false })
	if err == nil {
		return kept, plan
	}
	why := planner.Refusal{Reason: planner.ReasonSetAside, Message: err.Error()}
	plan = planner.Plan{}
	for i := range s.Classes {
		for _, pod := range s.Classes[i].Pods {
			plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod, Refusal: why})
		}
	}
	return s, plan
}
