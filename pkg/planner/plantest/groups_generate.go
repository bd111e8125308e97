package plantest

import (
	"fmt"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
)

// Grouped adds groups to the snapshots of a generator: up to three, of one to three classes each.
func Grouped(snapshots *rapid.Generator[planner.Snapshot]) *rapid.Generator[planner.Snapshot] {
	return rapid.Custom(func(t *rapid.T) planner.Snapshot {
		s := Clone(snapshots.Draw(t, "snapshot"))
		n := numbers(t)
		groups := make([]planner.Group, n("groups", 1, 3))
		for i := range groups {
			groups[i].Name, groups[i].Holds = fmt.Sprint("group ", i), rapid.Bool().Draw(t, "holds")
		}
		pods := make([]int, len(groups))
		for c := range s.Classes {
			if i := n("group", -1, len(groups)-1); i >= 0 {
				groups[i].Classes = append(groups[i].Classes, c)
				pods[i] += len(s.Classes[c].Pods)
			}
		}
		for i := range groups {
			groups[i].Min = int64(n("min", 1, pods[i]+1))
		}
		s.Groups = groups
		return s
	})
}
