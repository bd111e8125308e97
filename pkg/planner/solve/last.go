package solve

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
)

// belowCutoffLast makes a plan for the pods that may have machines, and then places the others, of too low a priority, in the room that it leaves. Planned together, they would take room on
// nodes for which the others get machines, because such a plan places more pods.
func (with Solver) belowCutoffLast(s planner.Snapshot, first func(planner.Snapshot) planner.Plan) planner.Plan {
	now, below := s, make([]bool, len(s.Classes))
	now.Classes = slices.Clone(s.Classes)
	for c := range now.Classes {
		if class := &now.Classes[c]; class.NoOffering != nil && class.NoOffering.Reason == planner.ReasonPriority && len(class.Pods) > 0 {
			class.Pods, below[c] = nil, true
		}
	}
	if !slices.Contains(below, true) {
		return first(s)
	}
	with.First = nil
	plan := first(now)
	g := constraints.NewPartial(s)
	g.Fix(plan)
	g.Fix(planner.Plan{Placements: plan.Held})
	rest := g.Snapshot
	rest.Classes = slices.Clone(rest.Classes)
	for c := range rest.Classes {
		if !below[c] {
			rest.Classes[c].Pods = nil
		}
	}
	g.Add(with.inGroups(rest, planner.Plan{}, Solver.ungrouped))
	all := g.Plan
	all.Placements, all.Held = withoutPods(all.Placements, plan.Held), plan.Held
	all.Unplaced = append(all.Unplaced, plan.Unplaced...)
	constraints.Sort(s, &all)
	all.Bound = min(all.Price, plan.Bound)
	return all
}
