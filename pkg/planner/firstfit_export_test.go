package planner

import "math"

// FirstFitByLevel is FirstFit when there are too many pods and machines to deal them one by one.
func FirstFitByLevel(s Snapshot) Plan {
	plan, _ := firstFitWithin(s, fitLimits{ruledPods: math.MaxInt})
	return plan
}
