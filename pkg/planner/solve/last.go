package solve

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
)

// belowCutoffLast makes a plan for the pods that may have machines, and then places the others, of too low a priority, in the room that it leaves. Planned together, they would take room on
// nodes for which the others get machines, because such a plan places more pods. ok is false if there are no such pods.
func (with Solver) belowCutoffLast(s planner.Snapshot, first func(planner.Snapshot) planner.Plan) (plan planner.Plan, ok bool) {
	now := s
	now.Classes = slices.Clone(s.Classes)
	for c := range now.Classes {
		if class := &now.Classes[c]; class.Unserved != nil && class.Unserved.Reason == planner.ReasonPriority && len(class.Pods) > 0 {
			class.Pods, ok = nil, true
		}
	}
	if !ok {
		return planner.Plan{}, false
	}
	with.First = nil
	plan = first(now)
	bound := plan.Bound
	g := constraints.NewPartial(s)
	g.Fix(plan)
	g.Add(with.inGroups(g.Snapshot, planner.Plan{}, Solver.valid))
	plan = g.Plan
	constraints.Sort(s, &plan)
	plan.Bound = min(plan.Price, bound)
	return plan, true
}
