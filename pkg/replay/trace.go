package replay

import (
	"fmt"
	"time"

	"karve.sh/karve/pkg/planner"
)

// Trace is a sequence of pods that come and go, on machines of some types.
type Trace struct {
	Name string
	// Snapshot holds the offerings, and a class without pods for each shape of pods. The index of a class is its shape.
	Snapshot planner.Snapshot
	// Pods are ordered by arrival.
	Pods []Pod
	// Prices are changes of prices, ordered by time. They also apply to running machines.
	Prices []PriceChange
	// Lives is how long machines of each pool live before others take their place, or 0 if they do not expire. It may be nil.
	Lives []time.Duration
	// End is when the replay ends. If it is 0, the replay ends soon after the last arrival.
	End time.Duration
}

// PriceChange is the price per hour of an offering from a time on.
type PriceChange struct {
	At       time.Duration
	Offering int
	Price    planner.MicroUSD
}

// Pod is a pod of a trace. Its times are relative to the start of the trace.
type Pod struct {
	Shape         int
	Arrives, Ends time.Duration
	// Placeholder reports that the pod only keeps room free, so that its restart costs nothing.
	Placeholder bool
}

// name returns the name of a pod of the trace. Names sort in the order of arrival.
func name(pod int) string { return fmt.Sprintf("default/p%06d", pod) }

func podOf(name string) int {
	var pod int
	if _, err := fmt.Sscanf(name, "default/p%d", &pod); err != nil {
		panic(fmt.Sprintf("pod %q is not of the trace", name))
	}
	return pod
}
