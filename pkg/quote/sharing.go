package quote

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
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

type alternative struct {
	isolates string
	// of returns the sharing of a GPUNodeClass with the strategy and the same resource. It returns an error if replicas is 0 and must be known.
	of func(c *facts.Cluster, was v1alpha1.Sharing, replicas int32) (v1alpha1.Sharing, error)
}

var alternatives = map[v1alpha1.Strategy]alternative{
	v1alpha1.StrategyTimeSlicing: {"nothing", func(_ *facts.Cluster, was v1alpha1.Sharing, replicas int32) (v1alpha1.Sharing, error) {
		return replicatedSharing(was, v1alpha1.StrategyTimeSlicing, replicas)
	}},
	v1alpha1.StrategyMPS: {"memory", func(_ *facts.Cluster, was v1alpha1.Sharing, replicas int32) (v1alpha1.Sharing, error) {
		s, err := replicatedSharing(was, v1alpha1.StrategyMPS, replicas)
		return atMost(s, nodecontract.MaxMPSReplicas), err
	}},
	v1alpha1.StrategyMIG:         {"hardware", instanceSharing},
	v1alpha1.StrategyMemorySlots: {"nothing, watches memory", memorySlots},
	v1alpha1.StrategyNone:        {"everything", wholeGPUs},
}

// Strategies returns the strategies that can be compared, sorted.
func Strategies() []v1alpha1.Strategy { return slices.Sorted(maps.Keys(alternatives)) }

// replicaOf returns the resource of the replicas that pods of a GPUNodeClass request, or would request in place of slots of memory.
func replicaOf(was v1alpha1.Sharing) string {
	if was.Strategy == v1alpha1.StrategyMemorySlots {
		return v1alpha1.ResourceGPUShared
	}
	return was.Resource()
}

// replicatedSharing returns a sharing with replicas of the same resource. If replicas is 0, it keeps the previous number.
func replicatedSharing(was v1alpha1.Sharing, strategy v1alpha1.Strategy, replicas int32) (v1alpha1.Sharing, error) {
	s := v1alpha1.Sharing{Strategy: strategy, ResourceName: replicaOf(was), RequestsAboveOne: was.RequestsAboveOne, MPS: was.MPS, Overrides: was.Overrides}
	switch {
	case replicas > 0:
		s.Replicas = &replicas
	case was.Replicas == nil:
		return s, fmt.Errorf("the number of replicas per GPU is unknown for %s: add --replicas", strategy)
	default:
		s.Replicas, s.MaxReplicas = was.Replicas, was.MaxReplicas
	}
	return s, nil
}

// atMost limits the replicas of a GPU.
func atMost(s v1alpha1.Sharing, limit int32) v1alpha1.Sharing {
	for _, n := range []**int32{&s.Replicas, &s.MaxReplicas} {
		if *n != nil {
			*n = new(min(**n, limit))
		}
	}
	s.Overrides = slices.Clone(s.Overrides)
	for i := range s.Overrides {
		s.Overrides[i].Replicas = min(s.Overrides[i].Replicas, limit)
	}
	return s
}

// wholeGPUs returns a sharing in which each replica is a GPU.
func wholeGPUs(_ *facts.Cluster, was v1alpha1.Sharing, _ int32) (v1alpha1.Sharing, error) {
	return v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(1)), ResourceName: replicaOf(was), RequestsAboveOne: was.RequestsAboveOne}, nil
}

// instanceSharing returns a sharing in which each replica is a MIG instance: on each GPU the smallest one with the device memory of the largest pending pod.
func instanceSharing(c *facts.Cluster, was v1alpha1.Sharing, _ int32) (v1alpha1.Sharing, error) {
	largest := int64(0)
	for _, class := range snapshot.Build(c).Classes {
		largest = max(largest, class.GPUMemoryBytes)
	}
	divided := &v1alpha1.MIGSharing{Naming: v1alpha1.MIGNamingSingle}
	seen := map[string]bool{}
	for _, t := range c.InstanceTypes() {
		for _, model := range mig.Models(t.GPU.Name, t.GPU.MemoryMiB) {
			if key := fmt.Sprint(model.Name, model.MemoryMiB); !seen[key] {
				seen[key] = true
				if profile := smallest(model, (largest+1<<20-1)>>20); profile != "" {
					divided.Layouts = append(divided.Layouts, v1alpha1.MIGLayout{GPUName: model.Name, GPUMemoryMiB: new(model.MemoryMiB), Profile: profile})
				}
			}
		}
	}
	return v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, ResourceName: replicaOf(was), MIG: divided}, nil
}

// smallest returns the profile with at least this memory in MiB of which most instances fit on a GPU, or "" if there is none.
func smallest(model mig.Model, memoryMiB int64) string {
	profile, count := "", int64(0)
	for i := range model.Kinds {
		kind := &model.Kinds[i]
		if n := model.Fit(kind.Profile); n > count && model.InstanceMiB(kind.Profile) >= memoryMiB {
			profile, count = kind.Profile, n
		}
	}
	return profile
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

// withStrategy returns the cluster as if its GPUNodeClasses had the strategy, and whether they already have it. Classes with whole GPUs stay, unless
// there are no others: their pods want whole GPUs.
func withStrategy(c *facts.Cluster, strategy v1alpha1.Strategy, replicas int32) (*facts.Cluster, bool, error) {
	shares := slices.ContainsFunc(c.GPUNodeClasses, func(class v1alpha1.GPUNodeClass) bool { return class.Spec.Sharing.Shared() })
	changed, current, names := *c, true, map[string]string(nil)
	changed.GPUNodeClasses = slices.Clone(c.GPUNodeClasses)
	if strategy != v1alpha1.StrategyMIG {
		names = oneName(c.GPUNodeClasses)
		if len(names) > 0 {
			changed.Pods, changed.Index = inOneResource(c.Pods, names), nil
		}
	}
	for i := range changed.GPUNodeClasses {
		class := &changed.GPUNodeClasses[i]
		was := class.Spec.Sharing
		if shares && !was.Shared() || was.Strategy == strategy && (replicas == 0 || was.MaxReplicas == nil && was.Replicas != nil && *was.Replicas == replicas) {
			continue
		}
		current = false
		s, err := alternatives[strategy].of(c, was, replicas)
		if err != nil {
			return nil, false, fmt.Errorf("GPUNodeClass %s: %w", class.Name, err)
		}
		if name, ok := names[s.ResourceName]; ok {
			s.ResourceName = name
		}
		s.BusyPercent = was.BusyPercent
		class.Spec.Sharing = s
		switch {
		case strategy == v1alpha1.StrategyMemorySlots:
			changed.Pods = inSlots(changed.Pods, cmp.Or(names[was.Resource()], was.Resource()), s.MemorySlots())
		case was.Strategy == v1alpha1.StrategyMemorySlots:
			changed.Pods = inReplicas(changed.Pods, s.Resource())
		case was.UsesDRA() && !s.UsesDRA():
			changed.Pods = withoutClaims(changed.Pods, was.DRADriver(), corev1.ResourceName(s.Resource()), strategy == v1alpha1.StrategyNone)
		default:
			continue
		}
		changed.Index = nil // The index has the unchanged pods.
	}
	return &changed, current, nil
}

// withoutClaims returns the pods with requests for replicas of a resource in place of ResourceClaims for a driver. If replicas are whole GPUs, a pod
// requests as many as its claims do.
func withoutClaims(pods []corev1.Pod, driver string, gpu corev1.ResourceName, whole bool) []corev1.Pod {
	pods = slices.Clone(pods)
	for i := range pods {
		if ask := claims.Of(&pods[i]); ask != nil && ask.Refusal == "" && ask.DriverName() == driver {
			total := ask.Total()
			replicas := total.Replicas
			if whole {
				replicas = total.GPUs
			}
			pods[i] = *claims.Requesting(&pods[i], gpu, replicas)
		}
	}
	return pods
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
