package snapshot_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// gpuTypes returns types with one GPU each in one zone, on demand, with the CPU and price of each model.
func gpuTypes(of map[string][2]int64) []catalog.InstanceType {
	var all []catalog.InstanceType
	for _, name := range []string{"t4", "a10g", "l40s"} {
		x, ok := of[name]
		if !ok {
			continue
		}
		t := *TypeNamed("g4dn.xlarge")
		t.Name, t.GPU.Name = name+".xlarge", name
		t.Labels = map[string]string{
			corev1.LabelInstanceTypeStable: t.Name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", "karpenter.k8s.aws/instance-gpu-name": name,
		}
		t.Capacity.MilliCPU, t.Allocatable.MilliCPU = x[0], x[0]
		t.Offerings = t.Offerings[:1:1]
		t.Offerings = []catalog.Offering{{Zone: t.Offerings[0].Zone, CapacityType: "on-demand", MicroUSDPerHour: x[1], Labels: map[string]string{
			corev1.LabelTopologyZone: t.Offerings[0].Zone, "karpenter.sh/capacity-type": "on-demand",
		}}}
		all = append(all, t)
	}
	return all
}

// working returns an edit of a pod of a Job with a throughput.
func working(throughput string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		OwnedBy("batch/v1", "Job", "train")(pod)
		pod.Annotations = map[string]string{v1alpha1.ThroughputAnnotation: throughput}
	}
}

// withTypes returns a cluster with the NodePool gpu-shared and its instance types.
func withTypes(types []catalog.InstanceType) *facts.Cluster {
	c := Shared()
	c.NodeClasses[NodeClassRef] = facts.NodeClassState{Ready: true, InstanceTypes: types}
	return c
}

func TestJobsGetTheLowestPriceOfWork(t *testing.T) {
	t.Parallel()
	// Ten pods fill a machine of either type.
	types := gpuTypes(map[string][2]int64{"t4": {4000, 526_000}, "l40s": {4000, 1_861_000}})
	for name, tc := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"no annotation":                     {func(*corev1.Pod) {}, "t4.xlarge"},
		"five times as fast at 3.5 times":   {working("t4=1, l40s=5"), "l40s.xlarge"},
		"three times as fast at 3.5 times":  {working("t4=1, l40s=3"), "t4.xlarge"},
		"a type that is not named":          {working("l40s=0.1"), "l40s.xlarge"},
		"all others":                        {working("t4=0.1, *=1"), "l40s.xlarge"},
		"an annotation that cannot be read": {working("t4:1"), "t4.xlarge"},
		"a fixed number of pods":            {func(pod *corev1.Pod) { working("l40s=5,t4=1")(pod); pod.OwnerReferences = nil }, "t4.xlarge"},
		"a number of pods that follows the load": {func(pod *corev1.Pod) {
			working("l40s=5,t4=1")(pod)
			pod.OwnerReferences, pod.Annotations[v1alpha1.FollowsLoadAnnotation] = nil, "true"
		}, "l40s.xlarge"},
	} {
		c := withTypes(types)
		c.Pods = Pods("train", 10, tc.edit)
		view := snapshot.Build(c)
		plan := alternatives.Add(view.Snapshot, solve.Plan(view.Snapshot))
		if err := check.Plan(view.Snapshot, plan); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(plan.Launches) != 1 || view.Offerings[plan.Launches[0].Offering].Type.Name != tc.want {
			t.Errorf("%s: %+v, want one %s", name, plan, tc.want)
			continue
		}
		o := view.Snapshot.Offerings[plan.Launches[0].Offering]
		if paid := int64(o.Price - o.Surcharge); paid != view.Offerings[plan.Launches[0].Offering].MicroUSDPerHour {
			t.Errorf("%s: costs %d per hour", name, paid)
		}
	}
}

func TestPodsWhoseThroughputNamesNoMachineWait(t *testing.T) {
	t.Parallel()
	c := withTypes(gpuTypes(map[string][2]int64{"t4": {4000, 526_000}}))
	c.Pods = Pods("train", 1, working("h100=5"))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Unplaced) != 1 || !strings.Contains(plan.Unplaced[0].Message, "names no GPU of the machines that would take it") {
		t.Errorf("%+v", plan)
	}
}

// contended returns an edit of a GPUNodeClass whose pods keep a GPU busy for a share of the time.
func contended(percent int32, strategy v1alpha1.Strategy) func(*v1alpha1.GPUNodeClass) {
	return func(class *v1alpha1.GPUNodeClass) {
		class.Spec.Sharing.Strategy = strategy
		if percent > 0 {
			class.Spec.Sharing.BusyPercent = &percent
		}
	}
}

// densities returns a cluster with the NodePool few, whose GPUs have two replicas, and many, whose GPUs have ten.
func densities(types []catalog.InstanceType, edit func(*v1alpha1.GPUNodeClass)) *facts.Cluster {
	c := Empty()
	c.NodeClasses[NodeClassRef] = facts.NodeClassState{Ready: true, InstanceTypes: types}
	c.GPUNodeClasses = []v1alpha1.GPUNodeClass{Class("few", 2, edit), Class("many", 10, edit)}
	c.NodePools = []karpv1.NodePool{Pool("few", "few", Tainted(v1alpha1.ResourceGPUShared)), Pool("many", "many", Tainted(v1alpha1.ResourceGPUShared))}
	return c
}

func TestJobsGetTheReplicasWithTheLowestPriceOfWork(t *testing.T) {
	t.Parallel()
	types := gpuTypes(map[string][2]int64{"t4": {8000, 526_000}, "l40s": {8000, 1_861_000}})
	for name, tc := range map[string]struct {
		percent  int32
		strategy v1alpha1.Strategy
		edit     func(*corev1.Pod)
		want     string
	}{
		"nobody says how busy pods are": {0, v1alpha1.StrategyTimeSlicing, working("t4=1"), "1 t4.xlarge of many"},
		"ten pods hardly use a GPU":     {10, v1alpha1.StrategyTimeSlicing, working("t4=1"), "1 t4.xlarge of many"},
		"two pods fill half a GPU each": {50, v1alpha1.StrategyTimeSlicing, working("t4=1"), "5 t4.xlarge of few"},
		"two pods that run together":    {50, v1alpha1.StrategyMPS, working("t4=1"), "1 t4.xlarge of many"},
		"a faster GPU with many pods":   {50, v1alpha1.StrategyMPS, working("t4=1, l40s=5"), "1 l40s.xlarge of many"},
		"pods that do not state work":   {50, v1alpha1.StrategyTimeSlicing, func(*corev1.Pod) {}, "1 t4.xlarge of many"},
		"a machine has CPU for two pods": {50, v1alpha1.StrategyTimeSlicing, func(pod *corev1.Pod) {
			Asking("cpu", "3900m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")(pod)
			working("t4=1")(pod)
		}, "5 t4.xlarge of many"},
		"a GPU has memory for two pods": {50, v1alpha1.StrategyTimeSlicing, func(pod *corev1.Pod) {
			working("t4=1")(pod)
			GPUMemory("7Gi")(pod)
		}, "5 t4.xlarge of many"},
	} {
		c := densities(types, contended(tc.percent, tc.strategy))
		c.Pods = Pods("train", 10, tc.edit)
		view := snapshot.Build(c)
		plan := alternatives.Add(view.Snapshot, solve.Plan(view.Snapshot))
		if err := check.Plan(view.Snapshot, plan); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		launched := map[string]int{}
		for _, l := range plan.Launches {
			o := view.Snapshot.Offerings[l.Offering]
			launched[o.InstanceType+" of "+view.Snapshot.Pools[o.Pool].Name]++
		}
		var got []string
		for _, what := range slices.Sorted(maps.Keys(launched)) {
			got = append(got, fmt.Sprintf("%d %s", launched[what], what))
		}
		if strings.Join(got, ", ") != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
}

// worker is a pod of the reference model: its CPU and its throughput by model of GPU, which is nil if it states none.
type worker struct {
	milliCPU int64
	on       map[string]int64
}

// capacity is a machine of the reference model. Pods keep a GPU busy for busyPercent of the time, or do not slow each other down if it is 0.
type capacity struct {
	gpu                                    string
	milliCPU, price, replicas, busyPercent int64
	mps                                    bool
}

// hours returns how long a worker takes for a unit of work if the machine is full of its kind. It is infinite on a GPU that it does not use.
func (m *capacity) hours(w worker) float64 {
	if w.on[m.gpu] == 0 {
		return math.Inf(1)
	}
	pods := min(m.replicas, m.milliCPU/w.milliCPU)
	load, slowdown := float64(pods*m.busyPercent)/100, 1.0
	switch {
	case pods <= 1 || load <= 1:
	case m.mps:
		slowdown = max(1, 0.45*load+0.5)
	default:
		slowdown = 1.11 * load
	}
	return slowdown / float64(w.on[m.gpu])
}

// leastWork returns the lowest price of the work of pods, by trying all partitions into machines: the price of a machine times the time of its slowest pod, relative to
// the machine on which that pod is fastest.
func leastWork(workers []worker, machines []capacity) float64 {
	fastest := make([]float64, len(workers))
	for i, w := range workers {
		fastest[i] = math.Inf(1)
		for m := range machines {
			if w.milliCPU <= machines[m].milliCPU {
				fastest[i] = min(fastest[i], machines[m].hours(w))
			}
		}
	}
	leastFor := func(group []int) float64 {
		least := math.Inf(1)
		for m := range machines {
			cpu, factor := int64(0), 1.0
			for _, i := range group {
				cpu += workers[i].milliCPU
				if workers[i].on != nil {
					factor = max(factor, machines[m].hours(workers[i])/fastest[i])
				}
			}
			if cpu <= machines[m].milliCPU && int64(len(group)) <= machines[m].replicas {
				least = min(least, factor*float64(machines[m].price))
			}
		}
		return least
	}
	least := math.Inf(1)
	var split func(i int, groups [][]int)
	split = func(i int, groups [][]int) {
		if i == len(workers) {
			var sum float64
			for _, g := range groups {
				sum += leastFor(g)
			}
			least = min(least, sum)
			return
		}
		for k := range groups {
			groups[k] = append(groups[k], i)
			split(i+1, groups)
			groups[k] = groups[k][:len(groups[k])-1]
		}
		split(i+1, append(slices.Clip(groups), []int{i}))
	}
	split(0, nil)
	return least
}

// drawnWork draws a cluster of up to six pods with the pools of [densities], and their reference.
func drawnWork(r *rand.Rand) (*facts.Cluster, []worker, []capacity) {
	of := map[string][2]int64{
		"t4": {2000 + 2000*r.Int64N(2), 400_000 + 1000*r.Int64N(300)}, "a10g": {4000 + 2000*r.Int64N(3), 900_000 + 1000*r.Int64N(500)}, "l40s": {8000, 1_500_000 + 1000*r.Int64N(900)},
	}
	percent, strategy := []int32{0, 20, 50, 100}[r.IntN(4)], []v1alpha1.Strategy{v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyMPS}[r.IntN(2)]
	c := densities(gpuTypes(of), contended(percent, strategy))
	var machines []capacity
	for gpu, x := range of {
		for _, replicas := range []int64{2, 10} {
			machines = append(machines, capacity{gpu, x[0], x[1], replicas, int64(percent), strategy == v1alpha1.StrategyMPS})
		}
	}
	var workers []worker
	profiles := []map[string]int64{nil}
	for range 2 {
		profiles = append(profiles, map[string]int64{"t4": 1 + r.Int64N(3), "a10g": 1 + r.Int64N(6), "l40s": r.Int64N(9)})
	}
	for i := range 2 + r.IntN(5) {
		w := worker{500 * (1 + r.Int64N(7)), profiles[r.IntN(len(profiles))]}
		edits := []func(*corev1.Pod){Asking("cpu", fmt.Sprintf("%dm", w.milliCPU), "memory", "128Mi", v1alpha1.ResourceGPUShared, "1")}
		if w.on != nil {
			var text []string
			for _, gpu := range []string{"t4", "a10g", "l40s"} {
				if w.on[gpu] > 0 {
					text = append(text, fmt.Sprintf("%s=%d", gpu, w.on[gpu]))
				}
			}
			edits = append(edits, working(strings.Join(text, ",")))
		}
		workers, c.Pods = append(workers, w), append(c.Pods, Pod(fmt.Sprintf("p%d", i), edits...))
	}
	return c, workers, machines
}

func TestPlansHaveTheLowestPriceOfWorkThatBruteForceFinds(t *testing.T) {
	t.Parallel()
	const cases = 1000
	optimal, surcharged := 0, 0
	for seed := range uint64(cases) {
		c, workers, machines := drawnWork(rand.New(rand.NewPCG(seed, 1))) //nolint:gosec // A fixed sequence.
		view := snapshot.Build(c)
		plan := alternatives.Add(view.Snapshot, solve.Plan(view.Snapshot))
		if err := planner.Validate(view.Snapshot); err != nil {
			t.Fatalf("case %d: %v", seed, err)
		}
		if err := check.Plan(view.Snapshot, plan); err != nil {
			t.Fatalf("case %d: %v", seed, err)
		}
		if len(plan.Unplaced) > 0 {
			t.Fatalf("case %d: %+v", seed, plan.Unplaced)
		}
		for _, l := range plan.Launches {
			if view.Snapshot.Offerings[l.Offering].Surcharge > 0 {
				surcharged++
			}
		}
		least := leastWork(workers, machines)
		// Each price of work is rounded up to a micro-dollar, and each factor to a millionth.
		slack := 1 + 4*float64(len(workers))
		switch {
		case float64(plan.Price) < least-slack:
			t.Fatalf("case %d: the plan costs %d, less than the least %.0f", seed, plan.Price, least)
		case float64(plan.Bound) > least+slack:
			t.Fatalf("case %d: the bound is %d, more than the least %.0f", seed, plan.Bound, least)
		case float64(plan.Price) <= least+slack:
			optimal++
		default:
			t.Logf("case %d: the plan costs %d, and the least is %.0f", seed, plan.Price, least)
		}
	}
	t.Logf("%d of %d plans are optimal; %d machines have a surcharge", optimal, cases, surcharged)
	if optimal < 990 || surcharged == 0 {
		t.Errorf("%d of %d plans are optimal, want 990; %d machines have a surcharge", optimal, cases, surcharged)
	}
}
