package provisioning

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// unproven reports for each launch whether it waits for a sign of the scheduler's: nothing shows that the scheduler tries pods, and it has not tried all of
// the pods of the launch. Pods of a class are interchangeable, so a launch does not wait if there are enough others that were tried.
func unproven(view *snapshot.View, launches []planner.Launch) []bool {
	waits := make([]bool, len(launches))
	if view.ReadAhead().Alive {
		return waits
	}
	class, tried := map[string]int{}, make([]int, len(view.Classes))
	for c := range view.Classes {
		for _, name := range view.Classes[c].Pods {
			if class[name] = c; !facts.Untried(view.Pods[name]) {
				tried[c]++
			}
		}
	}
	for i, l := range launches {
		needs := map[int]int{}
		for _, pod := range l.Pods {
			if c, ok := class[pod]; ok {
				needs[c]++
			}
		}
		for c, n := range needs {
			waits[i] = waits[i] || n > tried[c]
		}
		if waits[i] {
			continue
		}
		for c, n := range needs {
			tried[c] -= n
		}
	}
	return waits
}
