package planner

import "slices"

// Spare plans for headroom: pods that are not there, for which a place is kept. It is made of what a plan for the pods of a snapshot leaves, so
// that it never costs them anything: it returns the snapshot of what is left, with the classes of headroom and no others, and a plan for it. Its nodes are those
// of the snapshot, and after them the launches of the plan.
//
// What is launched for the pods and the nodes of the first turn are filled first, then those of the second, and so on; nodes without a turn
// are not used. Launches come last. Rules and wishes speak of no headroom.
func (with Search) Spare(s Snapshot, p Plan, headroom []Class, turns [][]int) (Snapshot, Plan) {
	with.First = nil
	left := leftOf(s, p, headroom)
	g := newGround(left)
	turns = append(slices.Clone(turns), nil)[:max(1, len(turns))]
	turns[0] = slices.Clone(turns[0])
	for v := len(s.Nodes); v < len(left.Nodes); v++ {
		turns[0] = append(turns[0], v)
	}
	for _, nodes := range turns {
		if now, some := onlyOn(g.Snapshot, nodes); some {
			g.bind(with.Build(now))
		}
	}
	now := g.Snapshot
	now.Classes = slices.Clone(now.Classes)
	for c := range now.Classes {
		now.Classes[c].Nodes = nil
	}
	last := with.Build(now)
	g.add(last)
	g.plan.Bound = last.Bound
	inOrder(left, &g.plan)
	return left, g.plan
}

// leftOf returns what a plan leaves, with the classes alone.
func leftOf(s Snapshot, p Plan, classes []Class) Snapshot {
	s.Classes = append(slices.Clone(s.Classes), classes...)
	g := newGround(s)
	g.bind(p)
	left := g.Snapshot
	left.Classes = left.Classes[len(s.Classes)-len(classes):]
	left.Rules, left.Topologies = nil, nil
	left.Offerings = slices.Clone(left.Offerings)
	for i := range left.Offerings {
		left.Offerings[i].Domains = nil
	}
	for i := range left.Nodes {
		left.Nodes[i].Domains = nil
	}
	return left
}

// onlyOn returns the snapshot with no other place for pods than the nodes, and whether any pod could have one.
func onlyOn(s Snapshot, nodes []int) (Snapshot, bool) {
	some := false
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		class := &s.Classes[c]
		class.Offerings = nil
		class.Nodes = slices.DeleteFunc(slices.Clone(class.Nodes), func(v int) bool {
			return !slices.Contains(nodes, v) || nodeTimes(s, *class, s.Nodes[v]) == 0
		})
		some = some || len(class.Nodes) > 0 && len(class.Pods) > 0
	}
	return s, some
}
