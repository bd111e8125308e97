package snapshot_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// twice gives the pod a second container with the same requests.
func twice(pod *corev1.Pod) {
	other := *pod.Spec.Containers[0].DeepCopy()
	other.Name = "other"
	pod.Spec.Containers = append(pod.Spec.Containers, other)
}

func TestImpossibleRequestsBlockOnlyTheirPod(t *testing.T) {
	t.Parallel()
	shared := func(namesAndQuantities ...string) func(*corev1.Pod) {
		return snapshottest.Asking(append(namesAndQuantities, v1alpha1.ResourceGPUShared, "1")...)
	}
	for name, edits := range map[string][]func(*corev1.Pod){
		"milli-CPU just above an int64":                 {shared("cpu", "9223372036854776")},
		"milli-CPU that overflows to a negative number": {shared("cpu", "10000000000000000")},
		"memory whose sum overflows":                    {shared("memory", "9223372036854775807"), twice},
		"the largest amount of everything":              {shared("cpu", "1e30", "memory", "1e30", "ephemeral-storage", "1e30", "example.com/fpga", "9223372036854775807")},
		"replicas whose sum overflows":                  {snapshottest.Asking(v1alpha1.ResourceGPUShared, "9223372036854775807"), twice},
		"an extended resource whose sum overflows":      {shared("example.com/fpga", "9223372036854775807"), twice},
		"huge device memory":                            {snapshottest.GPUMemory("9223372036854775807Ei")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := snapshottest.Shared()
			c.Pods = append(snapshottest.Pods("web", 11), snapshottest.Pod("hostile", edits...))
			view := snapshot.Build(c)
			plan := solve.Plan(view.Snapshot)
			if err := check.Plan(view.Snapshot, plan); err != nil {
				t.Fatal(err)
			}
			if len(plan.Launches) != 2 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Pod != "default/hostile" {
				t.Fatalf("want two launches for the others, and that one left out: %+v", plan)
			}
			if u := plan.Unplaced[0]; u.Reason != planner.ReasonTooLarge || u.Message == "" {
				t.Errorf("it is told %+v", u)
			}
		})
	}
}

// hugeAmounts are amounts that take hours to add, compare or write.
var hugeAmounts = []string{"1e2000000000", "-1e2000000000", "0e2000000000", strings.Repeat("9", 10_000)}

func TestHugeAmountsInAnnotationsBlockOnlyTheirPod(t *testing.T) {
	t.Parallel()
	for _, stated := range append(hugeAmounts, "1e-2000000000") {
		c := snapshottest.Shared()
		c.Pods = append(snapshottest.Pods("web", 11), snapshottest.Pod("hostile", snapshottest.GPUMemory(stated)))
		plan := solve.Plan(snapshot.Build(c).Snapshot)
		if len(plan.Launches) != 2 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Pod != "default/hostile" {
			t.Fatalf("%.20s: want two launches for the others, and that one left out: %+v", stated, plan)
		}
		if m := plan.Unplaced[0].Message; !strings.Contains(m, "exponent beyond 30") && !strings.Contains(m, "an amount may have 64") || !strings.Contains(m, "write") {
			t.Errorf("%.20s: it is told %q", stated, m)
		}
	}
}

func TestHugeAmountsInRequestsAreBounded(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1e2000000000", "0e2000000000", "0e-2000000000", strings.Repeat("9", 10_000)} { // The API server refuses negative ones.
		q := resource.MustParse(text)
		edit := func(pod *corev1.Pod) {
			r := &pod.Spec.Containers[0].Resources
			r.Requests[corev1.ResourceMemory], r.Limits = q, corev1.ResourceList{corev1.ResourceMemory: q}
			pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: q}
			twice(pod)
		}
		c := snapshottest.Shared()
		node := foreignNode("cpu", "8", "pods", "110", v1alpha1.ResourceGPU, "4")
		node.Status.Allocatable[corev1.ResourceMemory] = q
		c.Nodes = []corev1.Node{node}
		c.Pods = append(snapshottest.Pods("web", 11), snapshottest.Pod("waits", edit), snapshottest.Pod("runs", snapshottest.Running("foreign"), edit))
		view := snapshot.Build(c)
		plan := solve.Plan(view.Snapshot)
		if err := check.Plan(view.Snapshot, plan); err != nil {
			t.Fatal(err)
		}
		if q.Sign() > 0 && (len(plan.Unplaced) != 1 || plan.Unplaced[0].Reason != planner.ReasonTooLarge || !strings.Contains(plan.Unplaced[0].Message, "requests 1e30 of memory")) {
			t.Errorf("%.20s: %+v", text, plan.Unplaced)
		}
		for node, used := range c.Indexed().Used() {
			if n := used[corev1.ResourceMemory]; n < 0 && q.Sign() > 0 {
				t.Errorf("%.20s: %s uses %d of memory", text, node.Name, n)
			}
		}
		later := c.Pods[11].DeepCopy()
		later.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1")}
		if before := c.Pods[11].DeepCopy(); !facts.Same(before, before.DeepCopy()) || facts.Same(before, later) {
			t.Errorf("%.20s: equal pods differ, or others do not", text)
		}
	}
}

func TestReasonNamesImpossibleRequest(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.Pods = []corev1.Pod{snapshottest.Pod("hostile", snapshottest.Asking("cpu", "9223372036854776", v1alpha1.ResourceGPUShared, "1"))}
	plan := solve.Plan(snapshot.Build(c).Snapshot)
	if want := "requests 9223372036854776 of cpu, which is more than any machine has: correct its requests"; plan.Unplaced[0].Message != want {
		t.Errorf("it is told %q, want %q", plan.Unplaced[0].Message, want)
	}
}

func TestRunningPodWithImpossibleRequestsFillsNode(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	node := foreignNode("cpu", "8", "memory", "32Gi", "pods", "110", v1alpha1.ResourceGPU, "4")
	c.Nodes = []corev1.Node{node}
	for _, name := range []string{"a", "b", "c"} {
		c.Pods = append(c.Pods, snapshottest.Pod(name, snapshottest.Running("foreign"), snapshottest.Asking("cpu", "9223372036854776", "memory", "9223372036854775807")))
	}
	view := snapshot.Build(c)
	if free := view.Nodes[0].Free; free.MilliCPU != 0 || free.MemoryBytes != 0 {
		t.Errorf("the node has %+v left", free)
	}
}

func foreignNode(namesAndQuantities ...string) corev1.Node {
	node := corev1.Node{}
	node.Name, node.Labels = "foreign", map[string]string{}
	node.Status.Allocatable = snapshottest.Amounts(namesAndQuantities...)
	return node
}

func TestGPUCountOfNodeIsBoundedByReplicas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		labels map[string]string
		want   int
	}{
		"as many as the label says":      {map[string]string{"nvidia.com/gpu.count": "2"}, 2},
		"at most one per replica":        {map[string]string{"nvidia.com/gpu.count": "200"}, 4},
		"none for an implausible number": {map[string]string{"nvidia.com/gpu.count": "1099511627776"}, 0},
		"none for an invalid number":     {map[string]string{"nvidia.com/gpu.count": "two"}, 0},
		"implausible memory is ignored":  {map[string]string{"nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "9223372036854775807"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := snapshottest.Shared()
			node := foreignNode("cpu", "8", "memory", "32Gi", "pods", "110", v1alpha1.ResourceGPU, "4")
			node.Labels = c.labels
			cluster.Nodes = []corev1.Node{node}
			got := snapshot.Build(cluster).Nodes[0].GPUs
			if len(got) != c.want {
				t.Errorf("the node has %d GPUs, want %d", len(got), c.want)
			}
			for _, g := range got {
				if g.MemoryBytes != 0 {
					t.Errorf("a GPU has %d of memory", g.MemoryBytes)
				}
			}
		})
	}
}

func TestPlanUsesNodeWithHugeAllocatable(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	node := foreignNode("cpu", "9223372036854775807", "memory", "9223372036854775807", "pods", "9223372036854775807", v1alpha1.ResourceGPUShared, "9223372036854775807")
	node.Labels["nvidia.com/gpu.count"] = "256"
	c.Nodes = []corev1.Node{node}
	c.Pods = []corev1.Pod{
		snapshottest.Pod("bound", snapshottest.Running("foreign"), snapshottest.Asking(v1alpha1.ResourceGPUShared, "9007199254740000")),
		snapshottest.Pod("web"),
	}
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil || len(plan.Placements) != 1 {
		t.Errorf("want a place on the node: %+v, %v", plan, err)
	}
}

func TestOverflowingPromiseIsIgnored(t *testing.T) {
	t.Parallel()
	huge := "4611686018427387904"
	p := facts.PromiseOf(map[string]string{
		nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared, nodecontract.GPUsAnnotation: huge, nodecontract.ReplicasPerGPUAnnotation: huge, v1alpha1.PriceAnnotation: huge,
	})
	if p.Replicas() != 0 || p.MicroUSDPerHour != 0 {
		t.Errorf("promises %+v", p)
	}
}

func TestHugeLimitsAreNotReached(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.NodePools[0].Spec.Limits = map[corev1.ResourceName]resource.Quantity{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "nodes", v1alpha1.ResourceGPU, v1alpha1.ResourceGPUShared} {
		c.NodePools[0].Spec.Limits[name] = resource.MustParse("9223372036854775807")
	}
	c.Pods = snapshottest.Pods("web", 11)
	view := snapshot.Build(c)
	if plan := solve.Plan(view.Snapshot); len(plan.Launches) != 2 {
		t.Errorf("want two launches: %+v", plan)
	}
}

func TestUnschedulablePodsDoNotAffectReplicasPerGPU(t *testing.T) {
	t.Parallel()
	most := int32(16)
	replicas := func(others ...corev1.Pod) int64 {
		c := snapshottest.Shared()
		c.GPUNodeClasses[0].Spec.Sharing.MaxReplicas = &most
		c.Pods = append(snapshottest.Pods("web", 3, snapshottest.GPUMemory("1Gi")), others...)
		return snapshot.Build(c).Offerings[0].ReplicasPerGPU
	}
	if got := replicas(); got <= 10 {
		t.Fatalf("each GPU has %d replicas, so the test shows nothing", got)
	}
	want := replicas()
	for name, edits := range map[string][]func(*corev1.Pod){
		"more CPU than any machine has":            {snapshottest.Asking("cpu", "9223372036854776", v1alpha1.ResourceGPUShared, "1")},
		"more CPU than the types of the pool have": {snapshottest.Asking("cpu", "500", v1alpha1.ResourceGPUShared, "1")},
		"a missing PersistentVolumeClaim":          {snapshottest.Claiming("missing")},
		"more replicas than a machine has":         {snapshottest.Asking(v1alpha1.ResourceGPUShared, "9223372036854775807")},
	} {
		if got := replicas(snapshottest.Pod("hostile", edits...)); got != want {
			t.Errorf("%s: each GPU has %d replicas, want %d", name, got, want)
		}
	}
}

func TestReasonMessageIsBounded(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.Pods = []corev1.Pod{snapshottest.Pod("hostile", snapshottest.GPUMemory(strings.Repeat("much", 50_000)))}
	plan := solve.Plan(snapshot.Build(c).Snapshot)
	if n := len(plan.Unplaced[0].Message); n > 2000 {
		t.Errorf("the reason has %d bytes", n)
	}
}

func TestNodesWithSameNameCountOnce(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	first := snapshottest.Claim("a", &c.NodePools[0], xlarge, snapshottest.Initialized(snapshottest.Now))
	second := snapshottest.Claim("b", &c.NodePools[0], xlarge, snapshottest.Initialized(snapshottest.Now))
	second.Status.NodeName = "a"
	fresh := snapshottest.Claim("foreign", &c.NodePools[0], xlarge)
	c.NodeClaims = append(c.NodeClaims, first, second, fresh)
	c.Nodes = []corev1.Node{snapshottest.Node(&first, xlarge, 10), foreignNode("cpu", "8", "memory", "32Gi", "pods", "110", v1alpha1.ResourceGPU, "4")}
	view := snapshot.Build(c)
	if err := planner.Validate(view.Snapshot); err != nil {
		t.Error(err)
	}
	if len(view.Nodes) != 2 {
		t.Errorf("there are %d rooms, want a's and that of the claim: %+v", len(view.Nodes), view.Nodes)
	}
}

func TestDaemonSetThatFitsNoMachineIsIgnored(t *testing.T) {
	t.Parallel()
	for _, asks := range [][]string{{"cpu", "9223372036854776"}, {"memory", "8Ei"}, {"cpu", "500"}, {v1alpha1.ResourceGPUShared, "9223372036854775807"}} {
		c := snapshottest.Shared()
		c.DaemonSets = append(c.DaemonSets, snapshottest.DaemonSet("hostile", asks...))
		c.Pods = snapshottest.Pods("web", 11)
		if plan := solve.Plan(snapshot.Build(c).Snapshot); len(plan.Launches) != 2 {
			t.Errorf("%v: want two launches: %+v", asks, plan)
		}
	}
}
