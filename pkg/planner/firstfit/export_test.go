package firstfit

import (
	"math"

	"karve.sh/karve/pkg/planner"
)

// FirstFitByLevel is FirstFit when there are too many pods and machines to deal them one by one.
func FirstFitByLevel(s planner.Snapshot) planner.Plan {
	plan, _ := Within(s, Limits{RuledPods: math.MaxInt})
	return plan
}
