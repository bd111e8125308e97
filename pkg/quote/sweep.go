package quote

import (
	"cmp"
	"errors"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Sweep compares the price of the same pods for several numbers of replicas per GPU.
type Sweep struct {
	Rows []SweepRow `json:"sweep"`
	// Cheapest is the number of replicas of the best row, which is the one with the fewest unplaced pods, then the lowest price, or price of work if there is one, then the fewest replicas.
	Cheapest int32 `json:"cheapest"`

	// statesMemory reports whether any pod requests device memory.
	statesMemory bool
}

// SweepRow is the result for one number of replicas.
type SweepRow struct {
	Replicas int32 `json:"replicas"`
	Machines int   `json:"machines"`
	Prices
	Unplaced int `json:"unplacedPods"`
	// Busy is what each pod gets while all pods on its GPU are busy, with the strategy of the first GPUNodeClass with replicas. It is nil if that was not measured.
	Busy *Busy `json:"busy,omitempty"`
}

var errNoReplicas = errors.New("no GPUNodeClass has a number of replicas to compare: remove --replicas, or compare strategies with --sharing")

// SweepOf plans for the cluster with each number of replicas. There must be at least one. It returns an error if no GPUNodeClass has replicas.
func SweepOf(c *facts.Cluster, replicas []int32, search Search) (Sweep, error) {
	first := slices.IndexFunc(c.GPUNodeClasses, func(class v1alpha1.GPUNodeClass) bool { return hasReplicas(&class.Spec.Sharing) })
	if first < 0 {
		return Sweep{}, errNoReplicas
	}
	var sweep Sweep
	for _, n := range replicas {
		view := snapshot.Build(withReplicas(c, n))
		kept, plan, err := planFor(view.Snapshot, nil, search)
		if err != nil {
			return Sweep{}, err
		}
		sweep.Rows = append(sweep.Rows, SweepRow{
			n, len(plan.Launches), pricesOf(&view, kept, plan), len(plan.Unplaced), busy(&c.GPUNodeClasses[first].Spec.Sharing, int64(n)),
		})
		sweep.statesMemory = sweep.statesMemory || slices.ContainsFunc(view.Classes, func(c planner.Class) bool { return c.GPUMemoryBytes > 0 })
	}
	best := slices.MinFunc(sweep.Rows, func(a, b SweepRow) int {
		return cmp.Or(cmp.Compare(a.Unplaced, b.Unplaced), cmp.Compare(a.minimized(), b.minimized()), cmp.Compare(a.Replicas, b.Replicas))
	})
	sweep.Cheapest = best.Replicas
	return sweep, nil
}
