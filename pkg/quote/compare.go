package quote

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

// Comparison compares the price of the same pods for several strategies of sharing GPUs.
type Comparison struct {
	Rows []ComparisonRow `json:"sharing"`
}

// ComparisonRow is the result for one strategy.
type ComparisonRow struct {
	Strategy v1alpha1.Strategy `json:"strategy"`
	// Isolates is a word for what the strategy isolates between the pods on a GPU.
	Isolates string `json:"isolates"`
	// LeastPerGPU and MostPerGPU are the minimum and maximum number of replicas per GPU over the machines. They are 0 if there are no machines.
	LeastPerGPU int64 `json:"leastReplicasPerGPU"`
	MostPerGPU  int64 `json:"mostReplicasPerGPU"`
	Machines    int   `json:"machines"`
	Prices
	Unplaced int `json:"unplacedPods"`
	// Busy is what each pod gets while MostPerGPU pods on its GPU are busy. It is nil if that was not measured.
	Busy *Busy `json:"busy,omitempty"`
	// SlotSizes are the sizes of slots, if any: those of the last GPUNodeClass. They are chosen for the memory that the pods request, unless the class
	// already has sizes.
	SlotSizes []string `json:"slotSizes,omitempty"`
	// Example is one of the pods without a place. Message is why it has none.
	Example string `json:"unplacedExample,omitempty"`
	Message string `json:"message,omitempty"`
	// Current reports whether the GPUNodeClasses are as in this row. Cheapest reports whether no row has fewer pods without a place, or as few at a lower
	// price, or price of work if there is one.
	Current  bool `json:"current,omitempty"`
	Cheapest bool `json:"cheapest,omitempty"`
}

// Compare plans for the cluster with each strategy, and with each number of replicas per GPU for strategies that have replicas. Without numbers, the
// GPUNodeClasses keep theirs. There must be at least one strategy.
func Compare(c *facts.Cluster, strategies []v1alpha1.Strategy, replicas []int32, search Search) (Comparison, error) {
	var all Comparison
	for _, strategy := range strategies {
		numbers := replicas
		if len(numbers) == 0 || strategy == v1alpha1.StrategyNone || strategy == v1alpha1.StrategyMIG || strategy == v1alpha1.StrategyMemorySlots {
			numbers = []int32{0}
		}
		for _, n := range numbers {
			row, err := compare(c, strategy, n, search)
			if err != nil {
				return Comparison{}, err
			}
			all.Rows = append(all.Rows, row)
		}
	}
	order := func(a, b ComparisonRow) int {
		return cmp.Or(cmp.Compare(a.Unplaced, b.Unplaced), cmp.Compare(a.minimized(), b.minimized()))
	}
	best := slices.MinFunc(all.Rows, order)
	for i := range all.Rows {
		all.Rows[i].Cheapest = order(all.Rows[i], best) == 0
	}
	return all, nil
}

func compare(c *facts.Cluster, strategy v1alpha1.Strategy, replicas int32, search Search) (ComparisonRow, error) {
	with, current, err := withStrategy(c, strategy, replicas)
	if err != nil {
		return ComparisonRow{}, err
	}
	view := snapshot.Build(with)
	kept, plan, err := planFor(view.Snapshot, nil, search)
	if err != nil {
		return ComparisonRow{}, err
	}
	row := ComparisonRow{
		Strategy: strategy, Isolates: alternatives[strategy].isolates, Machines: len(plan.Launches), Prices: pricesOf(&view, kept, plan), Unplaced: len(plan.Unplaced), Current: current,
	}
	for i := range with.GPUNodeClasses {
		if m := with.GPUNodeClasses[i].Spec.Sharing.Memory; m != nil {
			row.SlotSizes = m.Sizes
		}
	}
	for _, launch := range plan.Launches {
		for _, n := range perGPU(&view, launch) {
			row.LeastPerGPU, row.MostPerGPU = cmp.Or(min(row.LeastPerGPU, n), n), max(row.MostPerGPU, n)
		}
	}
	if first := slices.IndexFunc(with.GPUNodeClasses, func(class v1alpha1.GPUNodeClass) bool { return class.Spec.Sharing.Strategy != "" }); first >= 0 {
		row.Busy = busy(&with.GPUNodeClasses[first].Spec.Sharing, row.MostPerGPU)
	}
	if row.Unplaced > 0 {
		row.Example, row.Message = plan.Unplaced[0].Pod, plan.Unplaced[0].Message
	}
	return row, nil
}

// perGPU returns the numbers of replicas, or slots, of the GPUs of a machine.
func perGPU(view *snapshot.View, launch planner.Launch) []int64 {
	slots := view.PromisedSlots(launch)
	if slots.IsZero() {
		_, replicas := view.Promised(launch)
		return []int64{replicas}
	}
	var all []int64
	for _, counts := range slots.GPUs {
		n := int64(0)
		for _, of := range counts {
			n += of
		}
		all = append(all, n)
	}
	return all
}

// Text returns the comparison as text.
func (c *Comparison) Text() string {
	var priced []*Prices
	for i := range c.Rows {
		priced = append(priced, &c.Rows[i].Prices)
	}
	prices := columnsOf(priced)
	t := table.Table{Columns: []table.Column{{Title: "SHARING"}, {Title: "ISOLATES"}, {Title: "REPLICAS PER GPU", Right: true}, {Title: "MACHINES", Right: true}}}
	t.Columns = slices.Concat(t.Columns, prices.columns(), busyColumns, []table.Column{{}})
	var measured *Busy
	var why []string
	for i := range c.Rows {
		row := &c.Rows[i]
		var notes []string
		if row.Cheapest {
			notes = append(notes, "cheapest")
		}
		if row.Current {
			notes = append(notes, "current")
		}
		if len(row.SlotSizes) > 0 {
			notes = append(notes, "sizes: "+strings.Join(row.SlotSizes, " "))
		}
		if row.Unplaced > 0 {
			notes = append(notes, words.Count(row.Unplaced, "pod")+" without a place")
			why = append(why, plain.Line(fmt.Sprintf("%s: %s has no place: %s", row.Strategy, row.Example, row.Message)))
		}
		cells := []string{string(row.Strategy), row.Isolates, row.perGPU(), strconv.Itoa(row.Machines)}
		t.Add(slices.Concat(cells, prices.cells(&row.Prices), row.Busy.cells(), []string{strings.Join(notes, ", ")})...)
		measured = cmp.Or(measured, row.Busy)
	}
	if note := prices.note(); note != "" {
		why = append(why, note)
	}
	return tableText(&t, measured, strings.Join(slices.Compact(why), "\n"))
}

func (r *ComparisonRow) perGPU() string {
	switch {
	case r.Machines == 0:
		return "-"
	case r.LeastPerGPU == r.MostPerGPU:
		return strconv.FormatInt(r.LeastPerGPU, 10)
	}
	return fmt.Sprintf("%d..%d", r.LeastPerGPU, r.MostPerGPU)
}
