package solve

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
)

// Headroom plans headroom: pods that do not exist, for which capacity is reserved. It uses only the capacity that a plan for the pods of the snapshot
// leaves, so it never makes that plan worse. It returns the snapshot of the remaining capacity, with the headroom as its only classes, and a plan for
// it. The nodes of that snapshot are those of the given one, followed by the launches of the plan.
//
// The launches of the plan and the nodes of the first turn are filled first, then the nodes of the second turn, and so on. Nodes without a turn are not
// used. New machines are launched last. Rules do not apply to headroom.
func (with Solver) Headroom(s planner.Snapshot, p planner.Plan, headroom []planner.Class, turns [][]int) (planner.Snapshot, planner.Plan) {
	with.First = nil
	left := leftOf(s, p, headroom)
	g := constraints.NewPartial(left)
	turns = append(slices.Clone(turns), nil)[:max(1, len(turns))]
	turns[0] = slices.Clone(turns[0])
	for v := len(s.Nodes); v < len(left.Nodes); v++ {
		turns[0] = append(turns[0], v)
	}
	for _, nodes := range turns {
		if now, some := onlyOn(g.Snapshot, nodes); some {
			g.Fix(with.ungrouped(now))
		}
	}
	now := g.Snapshot
	now.Classes = slices.Clone(now.Classes)
	for c := range now.Classes {
		now.Classes[c].Nodes = nil
	}
	last := with.ungrouped(now)
	g.Add(last)
	g.Plan.Bound = last.Bound
	constraints.Sort(left, &g.Plan)
	return left, g.Plan
}

// leftOf returns the snapshot of the capacity that a plan leaves, with only the given classes.
func leftOf(s planner.Snapshot, p planner.Plan, classes []planner.Class) planner.Snapshot {
	s.Classes = append(slices.Clone(s.Classes), classes...)
	g := constraints.NewPartial(s)
	g.Fix(p)
	left := g.Snapshot
	left.Classes = left.Classes[len(s.Classes)-len(classes):]
	left.Rules, left.Topologies, left.Groups = nil, nil, nil
	left.Offerings = slices.Clone(left.Offerings)
	for i := range left.Offerings {
		left.Offerings[i].Domains = nil
	}
	for i := range left.Nodes {
		left.Nodes[i].Domains = nil
	}
	return left
}

// onlyOn returns the snapshot in which pods may only go to the given nodes, and reports whether any pod fits there.
func onlyOn(s planner.Snapshot, nodes []int) (planner.Snapshot, bool) {
	some := false
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		class := &s.Classes[c]
		class.Offerings = nil
		class.Nodes = slices.DeleteFunc(slices.Clone(class.Nodes), func(v int) bool {
			return !slices.Contains(nodes, v) || constraints.TimesOnNode(s, *class, s.Nodes[v]) == 0
		})
		some = some || len(class.Nodes) > 0 && len(class.Pods) > 0
	}
	return s, some
}
