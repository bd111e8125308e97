package quote

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
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

// withReplicas returns the cluster with the given number of replicas on each GPU or MIG instance that has replicas.
func withReplicas(c *facts.Cluster, replicas int32) *facts.Cluster {
	changed := *c
	changed.GPUNodeClasses = slices.Clone(c.GPUNodeClasses)
	for i := range changed.GPUNodeClasses {
		if sharing := &changed.GPUNodeClasses[i].Spec.Sharing; hasReplicas(sharing) {
			sharing.Replicas, sharing.MaxReplicas = &replicas, nil
		}
	}
	return &changed
}

// hasReplicas reports whether GPUs are shared by a number of replicas. Slots of memory have sizes instead.
func hasReplicas(s *v1alpha1.Sharing) bool {
	return s.Shared() && s.Strategy != v1alpha1.StrategyMemorySlots
}

// Text returns the sweep as text.
func (s *Sweep) Text() string {
	var priced []*Prices
	for i := range s.Rows {
		priced = append(priced, &s.Rows[i].Prices)
	}
	prices := columnsOf(priced)
	t := table.Table{Columns: []table.Column{{Title: "REPLICAS PER GPU", Right: true}, {Title: "MACHINES", Right: true}}}
	t.Columns = slices.Concat(t.Columns, prices.columns(), busyColumns, []table.Column{{}})
	var measured *Busy
	for _, row := range s.Rows {
		var notes []string
		if row.Replicas == s.Cheapest {
			notes = append(notes, "cheapest")
		}
		if row.Unplaced > 0 {
			notes = append(notes, words.Count(row.Unplaced, "pod")+" without a place")
		}
		cells := []string{strconv.Itoa(int(row.Replicas)), strconv.Itoa(row.Machines)}
		t.Add(slices.Concat(cells, prices.cells(&row.Prices), row.Busy.cells(), []string{strings.Join(notes, ", ")})...)
		measured = cmp.Or(measured, row.Busy)
	}
	note := prices.note()
	if !s.statesMemory {
		note = strings.TrimPrefix(note+"\n", "\n") + fmt.Sprintf("No pod states how much GPU memory it needs (annotation %s), so memory does not limit how many share a GPU.", v1alpha1.GPUMemoryAnnotation)
	}
	return tableText(&t, measured, note)
}
