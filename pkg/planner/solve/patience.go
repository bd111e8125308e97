package solve

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
)

// Limits on [Patience]: the number of shapes of pods up to which the usual time is enough, by how many their number is divided beyond that, and the largest factor.
const (
	usualShapes     = 60
	shapesPerFactor = 20
	maxPatience     = 20
)

// Patience returns how many times its usual time the search for a plan of a snapshot is worth. It is 1 for up to 60 shapes of pods and for snapshots with
// constraints between machines, and grows with the number of shapes to 20. With so many shapes, a plan after 200 ms costs 5 to 10 % more than one after a few
// seconds: machines take a minute to start and run for hours, so that costs more than the pods lose by waiting.
func Patience(s planner.Snapshot) int64 {
	shapes := int64(Shapes(s))
	if shapes <= usualShapes || !constraints.IsPlain(s) {
		return 1
	}
	return min(shapes/shapesPerFactor, maxPatience)
}

// Shapes returns the number of different shapes of pods that may get a place.
func Shapes(s planner.Snapshot) int {
	n := 0
	for _, c := range s.Classes {
		if len(c.Pods) > 0 && c.Blocked == nil {
			n++
		}
	}
	return n
}
