package constraints

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// inverted reports whether the plan does not place a pod that some machine could hold, while it places one of lower priority.
func inverted(s planner.Snapshot, p planner.Plan) bool {
	if !slices.ContainsFunc(s.Classes, func(c planner.Class) bool { return c.Priority != s.Classes[0].Priority }) {
		return false
	}
	left := map[string]bool{}
	for _, x := range p.Unplaced {
		left[x.Pod] = true
	}
	pr := newProblem(s)
	served, first := false, int32(0)
	for _, c := range s.Classes {
		n := 0
		for _, pod := range c.Pods {
			if left[pod] {
				n++
			}
		}
		if n < len(c.Pods) && (!served || c.Priority < first) {
			served, first = true, c.Priority
		}
	}
	return served && slices.ContainsFunc(s.Classes, func(c planner.Class) bool {
		return c.Priority > first && slices.ContainsFunc(c.Pods, func(pod string) bool { return left[pod] }) &&
			(slices.ContainsFunc(c.Offerings, func(i int) bool { return pr.usable[i] && offeredTimes(s, c, i) > 0 }) ||
				slices.ContainsFunc(c.Nodes, func(v int) bool { return TimesOnNode(s, c, s.Nodes[v]) > 0 }))
	})
}

// byPriority plans for the pods of each priority with the capacity that higher priorities leave, the highest first.
func (a *arranger) byPriority(s planner.Snapshot) planner.Plan {
	g := NewPartial(s)
	var left []planner.Unplaced
	for _, priority := range priorities(s) {
		now := without(g.Snapshot, func(c int, _ string) bool { return s.Classes[c].Priority != priority })
		plan := a.arrange(now)
		left = append(left, plan.Unplaced...)
		g.Fix(plan)
	}
	g.Plan.Unplaced = left
	return g.Plan
}

// priorities returns the priorities of classes with pods, the highest first.
func priorities(s planner.Snapshot) []int32 {
	var out []int32
	for _, c := range s.Classes {
		if len(c.Pods) > 0 && !slices.Contains(out, c.Priority) {
			out = append(out, c.Priority)
		}
	}
	slices.SortFunc(out, func(x, y int32) int { return cmp.Compare(y, x) })
	return out
}

// betterFor returns the better of two plans by [IsBetter], and the second if they are equal.
func betterFor(s planner.Snapshot, x, y planner.Plan) planner.Plan {
	if IsBetter(s, x, y) {
		return x
	}
	return y
}

// IsBetter reports whether plan x is better than y: it places more pods of the highest priority in which they differ, or equally many of each priority
// at a lower price.
func IsBetter(s planner.Snapshot, x, y planner.Plan) bool {
	count := func(p planner.Plan) map[int32]int {
		left := map[string]bool{}
		for _, u := range p.Unplaced {
			left[u.Pod] = true
		}
		n := map[int32]int{}
		for _, c := range s.Classes {
			for _, pod := range c.Pods {
				if left[pod] {
					n[c.Priority]++
				}
			}
		}
		return n
	}
	a, b := count(x), count(y)
	for _, p := range priorities(s) {
		if a[p] != b[p] {
			return a[p] < b[p]
		}
	}
	return x.Price < y.Price
}
