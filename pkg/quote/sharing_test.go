package quote_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// compared returns the rows of a comparison, which must be the same for a cluster that has an index, as live ones do.
func compared(t *testing.T, c *facts.Cluster, replicas []int32, strategies ...v1alpha1.Strategy) []quote.ComparisonRow {
	t.Helper()
	got, err := quote.Compare(c, strategies, replicas, search)
	if err != nil {
		t.Fatal(err)
	}
	live := *c
	live.Index = c.Indexed()
	indexed, err := quote.Compare(&live, strategies, replicas, search)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, indexed); diff != "" {
		t.Errorf("with an index, the comparison is another:\n%s", diff)
	}
	return got.Rows
}

func TestStrategiesAreComparedForSamePods(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = Pods("p", 20, Asking("cpu", "100m", "memory", "500Mi", v1alpha1.ResourceGPUShared, "1"), GPUMemory("1Gi"))
	rows := compared(t, c, nil, v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyMPS, v1alpha1.StrategyNone)
	for i, want := range []struct {
		strategy          v1alpha1.Strategy
		isolates          string
		machines          int
		perGPU            int64
		cheapest, current bool
	}{
		{v1alpha1.StrategyTimeSlicing, "nothing", 2, 10, true, true}, {v1alpha1.StrategyMPS, "memory", 2, 10, true, false}, {v1alpha1.StrategyNone, "everything", 20, 1, false, false},
	} {
		if r := rows[i]; r.Strategy != want.strategy || r.Isolates != want.isolates || r.Machines != want.machines || r.LeastPerGPU != want.perGPU || r.MostPerGPU != want.perGPU ||
			r.Cheapest != want.cheapest || r.Current != want.current || r.Unplaced > 0 || r.Bound != r.Price || r.Price == 0 {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
	if rows[0].Price != of(t, c).Price || rows[2].Price != of(t, c).WholeGPUs {
		t.Errorf("the prices are %d and %d, and those of the plan %d and %d", rows[0].Price, rows[2].Price, of(t, c).Price, of(t, c).WholeGPUs)
	}
	if s := c.GPUNodeClasses[0].Spec.Sharing; s.Strategy != v1alpha1.StrategyTimeSlicing || *s.Replicas != 10 {
		t.Errorf("the cluster was changed: %+v", s)
	}
}

func TestPodsThatAStrategyCannotHoldAreCounted(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("large", GPUMemory("6Gi")), Pod("small", GPUMemory("1Gi"))}
	got, err := quote.Compare(c, []v1alpha1.Strategy{v1alpha1.StrategyMPS, v1alpha1.StrategyTimeSlicing}, []int32{2, 10}, search)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		unplaced          int
		cheapest, current bool
	}{{0, true, false}, {1, false, false}, {0, true, false}, {0, true, true}} {
		if r := got.Rows[i]; r.Unplaced != want.unplaced || r.Cheapest != want.cheapest || r.Current != want.current {
			t.Errorf("row %d is %+v, want %+v", i, r, want)
		}
	}
	if r := got.Rows[1]; r.Example != "default/large" || !strings.Contains(r.Message, "states 6Gi of device memory") {
		t.Errorf("without a place is %s: %s", r.Example, r.Message)
	}
	out := got.Text()
	if words := "\n\nMPS: default/large has no place: states 6Gi of device memory"; !strings.Contains(out, words) || !strings.Contains(out, "   1 pod without a place") {
		t.Errorf("it prints\n%s", out)
	}
}

func TestReplicasWithMPSAreAtMostItsClients(t *testing.T) {
	t.Parallel()
	c := Shared()
	s := &c.GPUNodeClasses[0].Spec.Sharing
	s.Replicas, s.MaxReplicas, s.Overrides = new(int32(60)), new(int32(100)), []v1alpha1.ReplicasOverride{{GPUName: "a10g", Replicas: 128}}
	c.Pods = Pods("p", 60, Asking("cpu", "10m", "memory", "10Mi", v1alpha1.ResourceGPUShared, "1"))
	for _, r := range compared(t, c, nil, v1alpha1.StrategyMPS) {
		if r.MostPerGPU > 48 || r.Unplaced > 0 {
			t.Errorf("%+v", r)
		}
	}
	if *s.Replicas != 60 || s.Overrides[0].Replicas != 128 {
		t.Errorf("the cluster was changed: %+v", s)
	}
}

func TestWholeGPUsAreComparedWithReplicas(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone}
	c.Pods = Pods("p", 10, Asking("cpu", "100m", "memory", "500Mi", v1alpha1.ResourceGPU, "1"))
	if _, err := quote.Compare(c, []v1alpha1.Strategy{v1alpha1.StrategyMPS}, nil, search); err == nil || !strings.Contains(err.Error(), "GPUNodeClass gpu-shared: the number of replicas per GPU is unknown for MPS: add --replicas") {
		t.Errorf("without a number of replicas: %v", err)
	}
	rows := compared(t, c, []int32{5}, v1alpha1.StrategyNone, v1alpha1.StrategyTimeSlicing)
	if !rows[0].Current || rows[0].Machines != 10 || rows[1].Machines != 2 || rows[1].Current || !rows[1].Cheapest {
		t.Errorf("%+v", rows)
	}
}

func TestSlotsAreSizedByWhatPodsState(t *testing.T) {
	t.Parallel()
	c := Shared()
	small := Asking("cpu", "100m", "memory", "500Mi", v1alpha1.ResourceGPUShared, "1")
	c.Pods = append(append(Pods("small", 20, small, GPUMemory("1900Mi")), Pods("large", 4, small, GPUMemory("7Gi"))...), Pods("silent", 2, small)...)
	rows := compared(t, c, nil, v1alpha1.StrategyMemorySlots, v1alpha1.StrategyTimeSlicing)
	slots := rows[0]
	// 20 × 2 GiB and 4 × 7 GiB are 68 GiB, and a T4 has 14 for slots.
	if !slices.Equal(slots.SlotSizes, []string{"2Gi", "7Gi"}) || slots.Machines != 5 || slots.MostPerGPU != 7 || slots.Current || slots.Bound != slots.Price {
		t.Errorf("with slots: %+v", slots)
	}
	if slots.Unplaced != 2 || !strings.HasPrefix(slots.Example, "default/silent-") {
		t.Errorf("%d pods have no place, such as %s: %s", slots.Unplaced, slots.Example, slots.Message)
	}
	if rows[1].Unplaced > 0 || !rows[1].Current {
		t.Errorf("time-slicing: %+v", rows[1])
	}

	silent := Shared()
	silent.Pods = Pods("silent", 2, small)
	if _, err := quote.Compare(silent, []v1alpha1.Strategy{v1alpha1.StrategyMemorySlots}, nil, search); err == nil || !strings.Contains(err.Error(), "annotate the pods with karve.sh/gpu-memory") {
		t.Errorf("pods that state nothing: %v", err)
	}
}

func TestSlotsAreComparedWithReplicasOfTheSameMemory(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"2Gi", "7Gi"}}}
	c.Pods = Pods("p", 8, Asking("cpu", "100m", "memory", "500Mi", "nvidia.com/gpu-7gb", "1"))
	rows := compared(t, c, []int32{10}, v1alpha1.StrategyMemorySlots, v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyNone)
	if !rows[0].Current || !slices.Equal(rows[0].SlotSizes, []string{"2Gi", "7Gi"}) || rows[0].Machines != 4 || rows[0].MostPerGPU != 2 {
		t.Errorf("with slots: %+v", rows[0])
	}
	if rows[1].Machines != 4 || rows[1].Unplaced > 0 || rows[2].Machines != 8 {
		t.Errorf("with replicas: %+v", rows[1:])
	}
}

// TestWholeGPUsPriceSlotsAndInstances checks that the price of whole GPUs is that of GPUs that nobody shares, however they are shared now.
func TestWholeGPUsPriceSlotsAndInstances(t *testing.T) {
	t.Parallel()
	small := Asking("cpu", "100m", "memory", "500Mi", "nvidia.com/gpu-7gb", "1")
	slots := Shared()
	slots.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"7Gi"}}}
	slots.Pods = Pods("p", 8, small)
	if q := of(t, slots); q.Price != 4*526_000 || q.WholeGPUs != 8*526_000 || q.WholeGPUsUnplaced > 0 {
		t.Errorf("slots cost %d and whole GPUs %d, and %d pods have no whole GPU", q.Price, q.WholeGPUs, q.WholeGPUsUnplaced)
	}

	instances := Shared()
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	instances.UseInstanceTypes(types)
	instances.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{
		Strategy: v1alpha1.StrategyMIG, ResourceName: v1alpha1.ResourceGPUShared,
		MIG: &v1alpha1.MIGSharing{Naming: v1alpha1.MIGNamingSingle, Layouts: []v1alpha1.MIGLayout{{GPUName: "a100", Profile: "1g.5gb"}}},
	}
	instances.NodePools[0].Spec.Template.Spec.Requirements = nil
	instances.Pods = Pods("p", 16, Asking("cpu", "100m", "memory", "500Mi", v1alpha1.ResourceGPUShared, "1"))
	q := of(t, instances)
	if len(q.Unplaced) > 0 || q.WholeGPUsUnplaced > 0 || q.WholeGPUs == q.Price {
		t.Errorf("instances cost %d and whole GPUs %d; %d and %d pods have no place", q.Price, q.WholeGPUs, len(q.Unplaced), q.WholeGPUsUnplaced)
	}
}

// Pods of 24 instances 1g.5gb and 16 of 2g.10gb need 40 whole GPUs, in whatever layouts the instances are.
func TestPricesCompareThePodsOfAllProfiles(t *testing.T) {
	t.Parallel()
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	const p4d = 21_957_642
	both := v1alpha1.MIGLayout{GPUName: "a100", GPUMemoryMiB: new(int64(40960)), Instances: []v1alpha1.MIGInstances{{Profile: "1g.5gb", Count: 3}, {Profile: "2g.10gb", Count: 2}}}
	small, middle := v1alpha1.MIGLayout{GPUName: "a100", Profile: "1g.5gb"}, v1alpha1.MIGLayout{GPUName: "a100", Profile: "2g.10gb"}
	for name, c := range map[string]struct {
		layouts         []v1alpha1.MIGLayout
		replicas        *int32
		machines, whole planner.MicroUSD
		layout          string
	}{
		"two layouts":            {[]v1alpha1.MIGLayout{small, middle}, nil, 2, 5, "2g.10gb"},
		"one of both profiles":   {[]v1alpha1.MIGLayout{both}, nil, 1, 5, "3x1g.5gb_2x2g.10gb"},
		"the better of all":      {[]v1alpha1.MIGLayout{small, middle, both}, nil, 1, 5, "3x1g.5gb_2x2g.10gb"},
		"shared by several pods": {[]v1alpha1.MIGLayout{both}, new(int32(2)), 1, 5, "3x1g.5gb_2x2g.10gb"},
	} {
		cluster, suffix := Shared(), ""
		cluster.UseInstanceTypes(types)
		cluster.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Layouts: c.layouts}, Replicas: c.replicas}
		Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "p4d.24xlarge")(&cluster.NodePools[0])
		if c.replicas != nil {
			suffix = ".shared"
		}
		cluster.Pods = slices.Concat(
			Pods("small", 24, Asking("cpu", "1", "memory", "1Gi", "nvidia.com/mig-1g.5gb"+suffix, "1")),
			Pods("middle", 16, Asking("cpu", "1", "memory", "1Gi", "nvidia.com/mig-2g.10gb"+suffix, "1")),
		)
		q := of(t, cluster)
		if q.Price != c.machines*p4d || q.WholeGPUs != c.whole*p4d || len(q.Unplaced) > 0 || q.WholeGPUsUnplaced > 0 {
			t.Errorf("%s: %d, and with whole GPUs %d, %d pods without a place", name, q.Price, q.WholeGPUs, q.WholeGPUsUnplaced)
		}
		if q.Karpenter == nil || *q.Karpenter != c.machines*p4d || q.KarpenterUnplaced > 0 {
			t.Errorf("%s: Karpenter pays %v", name, q.Karpenter)
		}
		if q.Claims[0].MIGLayout != c.layout {
			t.Errorf("%s: the layout is %s", name, q.Claims[0].MIGLayout)
		}
		for _, row := range compared(t, cluster, []int32{5}, v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyNone, v1alpha1.StrategyMIG) {
			if row.Unplaced > 0 {
				t.Errorf("%s: %d pods have no place with %s: %s", name, row.Unplaced, row.Strategy, row.Message)
			}
		}
	}
}

func TestSweepNeedsReplicas(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"7Gi"}}}
	if _, err := quote.SweepOf(c, []int32{2, 4}, search); err == nil || !strings.Contains(err.Error(), "no GPUNodeClass has a number of replicas") {
		t.Errorf("the error is %v", err)
	}
}
