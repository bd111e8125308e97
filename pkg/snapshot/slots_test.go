package snapshot_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// withSlots returns a cluster whose T4s, of 15079 MiB, have slots of 2, 4 and 8 GiB, in 14567 MiB.
func withSlots() *facts.Cluster {
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi", "8Gi"}}}
	return c
}

// slotted makes a pod request a slot, little CPU and little memory.
func slotted(size string) func(*corev1.Pod) {
	return Asking("cpu", "10m", "memory", "16Mi", "nvidia.com/gpu-"+size, "1")
}

// slotNode returns a started machine with slots on its GPUs, given how many there are of each size, and as held how many of them pods hold. Without held, its agent has not reported.
func slotNode(c *facts.Cluster, name, instanceType string, wanted, held [][]int64) {
	t := TypeNamed(instanceType)
	slots := c.GPUNodeClasses[0].Spec.Sharing.MemorySlots()
	slots.GPUs = wanted
	claim := Claim(name, &c.NodePools[0], t, Initialized(Now), func(claim *karpv1.NodeClaim) {
		claim.Annotations[nodecontract.ResourceAnnotation] = "nvidia.com/gpu-2gb"
		claim.Annotations[nodecontract.SlotsAnnotation] = slots.String()
	})
	node := Node(&claim, t, 0)
	for i, n := range slots.Wanted() {
		node.Status.Allocatable[corev1.ResourceName(nodecontract.SlotResource(slots.SizesMiB[i]))] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	if held != nil {
		report := nodecontract.SlotsInUse{SizesMiB: slots.SizesMiB}
		for _, of := range held {
			report.GPUs = append(report.GPUs, nodecontract.GPUSlotsInUse{MemoryMiB: 15079, Held: of})
		}
		node.Annotations[nodecontract.SlotsInUseAnnotation] = report.String()
	}
	c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, node)
}

// free returns what is left on the GPUs of the only node, in MiB.
func free(t *testing.T, c *facts.Cluster) []int64 {
	t.Helper()
	view := snapshot.Build(c)
	if len(view.Nodes) != 1 {
		t.Fatalf("%d nodes", len(view.Nodes))
	}
	var mib []int64
	for _, g := range view.Nodes[0].GPUs {
		mib = append(mib, g.MemoryBytes>>20)
	}
	return mib
}

func TestMachinesArePlannedForSlotsByTheirMemory(t *testing.T) {
	t.Parallel()
	c := withSlots()
	// 14567 MiB hold 8 + 4 + 2 GiB, and nothing more.
	c.Pods = slices.Concat(Pods("large", 2, slotted("8gb")), Pods("middle", 2, slotted("4gb")), Pods("small", 2, slotted("2gb")))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil || len(plan.Unplaced) > 0 || len(plan.Launches) != 2 {
		t.Fatalf("%v, %+v", err, plan)
	}
	for _, l := range plan.Launches {
		slots := view.PromisedSlots(l)
		if len(slots.GPUs) != 1 || !slices.Equal(slots.GPUs[0], []int64{1, 1, 1}) || slots.ReserveMiB != 512 || slots.Enforcement != "Watch" {
			t.Errorf("a machine for %v promises %s", l.Pods, slots)
		}
	}
	c.Pods = append(c.Pods, Pod("one-more", slotted("2gb")))
	view = snapshot.Build(c)
	if plan := solve.Plan(view.Snapshot); len(plan.Launches) != 3 {
		t.Errorf("%d machines for a pod that does not fit", len(plan.Launches))
	}
}

func TestSlotsOfSeveralGPUsAreWhereThePlanHasThem(t *testing.T) {
	t.Parallel()
	c := withSlots()
	c.NodeClasses[NodeClassRef] = only(c.NodeClasses[NodeClassRef], "g4dn.12xlarge")
	c.Pods = slices.Concat(Pods("large", 4, slotted("8gb")), Pods("middle", 4, slotted("4gb")), Pods("small", 4, slotted("2gb")))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Launches) != 1 {
		t.Fatalf("%+v", plan)
	}
	slots := view.PromisedSlots(plan.Launches[0])
	for _, counts := range slots.GPUs {
		if slots.UsedMiB(counts) > slots.CapacityMiB(15079) {
			t.Errorf("a GPU is to have slots of %d MiB: %v", slots.UsedMiB(counts), counts)
		}
	}
	if !slices.Equal(slots.Wanted(), []int64{4, 4, 4}) {
		t.Errorf("promised %v", slots.GPUs)
	}
}

func TestPodsThatRequestSlotsBadlyAreBlocked(t *testing.T) {
	t.Parallel()
	two := func(pod *corev1.Pod) { // A second container with a slot of its own.
		second := *pod.Spec.Containers[0].DeepCopy()
		second.Name = "second"
		pod.Spec.Containers = append(pod.Spec.Containers, second)
	}
	for name, c := range map[string]struct {
		edits  []func(*corev1.Pod)
		reason planner.Reason
		words  []string
	}{
		"two slots":              {[]func(*corev1.Pod){Asking("nvidia.com/gpu-2gb", "2")}, planner.ReasonRequestsAboveOne, []string{"container main asks for 2 slots", "ask for one slot with at least 4096 MiB"}},
		"two sizes":              {[]func(*corev1.Pod){Asking("nvidia.com/gpu-2gb", "1", "nvidia.com/gpu-4gb", "1")}, planner.ReasonRequestsAboveOne, []string{"asks for 2 slots"}},
		"a slot and a GPU":       {[]func(*corev1.Pod){Asking("nvidia.com/gpu-2gb", "1", "nvidia.com/gpu", "1")}, planner.ReasonUnsupported, []string{"asks for slots of device memory and for nvidia.com/gpu"}},
		"more than its slot":     {[]func(*corev1.Pod){slotted("4gb"), GPUMemory("5Gi")}, planner.ReasonTooLarge, []string{"states 5Gi of device memory and asks for slots with 4Gi"}},
		"a size that is not had": {[]func(*corev1.Pod){slotted("16gb")}, planner.ReasonNoPool, []string{"asks for nvidia.com/gpu-16gb", "it offers nvidia.com/gpu-2gb, nvidia.com/gpu-4gb, nvidia.com/gpu-8gb"}},
		"another resource":       {nil, planner.ReasonNoPool, []string{"asks for nvidia.com/gpu.shared"}},
		"more than any machine":  {[]func(*corev1.Pod){Asking("nvidia.com/gpu-2gb", "9000000000000000000")}, planner.ReasonTooLarge, []string{"more than any machine has"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := withSlots()
			cluster.Pods = []corev1.Pod{Pod("a", c.edits...)}
			wantBlocked(t, cluster, c.reason, c.words...)
		})
	}
	c := withSlots()
	c.Pods = []corev1.Pod{Pod("a", slotted("4gb"), two), Pod("b", slotted("4gb"), GPUMemory("3Gi"))}
	for _, class := range snapshot.Build(c).Classes {
		if class.Blocked != nil || len(class.Offerings) == 0 || class.GPUMemoryBytes != class.Requests.Replicas*4<<30 {
			t.Errorf("a slot for each of two containers, or less than the slot: %+v", class)
		}
	}
}

func TestFreeSlotsOfNodeCountAsMemory(t *testing.T) {
	t.Parallel()
	c := withSlots()
	slotNode(c, "gpu-1", "g4dn.12xlarge", [][]int64{{3, 1, 0}, {0, 0, 1}, {0, 0, 0}, {7, 0, 0}}, [][]int64{{1, 1, 0}, {0, 0, 0}, {0, 0, 0}, {7, 0, 0}})
	c.Pods = slices.Concat(Pods("small", 8, slotted("2gb"), Running("gpu-1")), Pods("middle", 1, slotted("4gb"), Running("gpu-1")))
	if got := free(t, c); !slices.Equal(got, []int64{14567 - 2048 - 4096, 14567, 14567, 14567 - 7*2048}) {
		t.Errorf("free are %v", got)
	}
	// The agent has not said yet which of the free slots another pod holds. It is one of GPU 0.
	c.Pods = append(c.Pods, Pod("new", slotted("2gb"), Running("gpu-1")))
	if got := free(t, c); !slices.Equal(got, []int64{14567 - 2*2048 - 4096, 14567, 14567, 14567 - 7*2048}) {
		t.Errorf("with a pod that the agent has not seen, free are %v", got)
	}
	// Nothing is planned for slots that a machine cannot be trusted to have.
	c.Nodes[0].Status.Allocatable["nvidia.com/gpu-8gb"] = resource.MustParse("0")
	if got := free(t, c); slices.Max(got) > 0 {
		t.Errorf("free are %v on a node that does not have the slots that it promised", got)
	}
	// Its agent has a minute to follow a change.
	c.NodeClaims[0].Annotations[v1alpha1.ReplicasRaisedAnnotation] = Now.Format("2006-01-02T15:04:05Z07:00")
	if got := free(t, c); slices.Max(got) != 14567 {
		t.Errorf("free are %v just after the slots were changed", got)
	}
}

func TestGPUOutOfServiceHasNoSlots(t *testing.T) {
	t.Parallel()
	c := withSlots()
	slotNode(c, "gpu-1", "g4dn.12xlarge", [][]int64{{0, 0, 0}, {0, 0, 0}, {0, 0, 1}, {0, 0, 0}}, [][]int64{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}})
	report, _ := nodecontract.ParseSlotsInUse(c.Nodes[0].Annotations[nodecontract.SlotsInUseAnnotation], []int64{2048, 4096, 8192})
	report.GPUs[1].MemoryMiB = 0
	c.Nodes[0].Annotations[nodecontract.SlotsInUseAnnotation] = report.String()
	if got := free(t, c); !slices.Equal(got, []int64{14567, 0, 14567, 14567}) {
		t.Errorf("free are %v", got)
	}
}

func TestSlotsThatNoGPUHasCloseThePool(t *testing.T) {
	t.Parallel()
	c := withSlots()
	c.GPUNodeClasses[0].Spec.Sharing.Memory.Sizes = []string{"2Gi", "16Gi"}
	problems := snapshot.Build(c).Pools[0].Problems
	if len(problems) != 1 || problems[0].Reason != "SlotsAboveGPUs" || problems[0].Message != fmt.Sprintf(
		"no GPU that the NodePool allows has slots of 16Gi: the largest, the t4 of g4dn.12xlarge, has %dMi for slots, beside spec.sharing.memory.reserve of GPUNodeClass gpu-shared; "+
			"remove the sizes, or allow instance types with larger GPUs", 14567) {
		t.Errorf("%+v", problems)
	}
	c.GPUNodeClasses[0].Spec.Sharing.Memory.Sizes = []string{"16Gi"}
	if problems := snapshot.Build(c).Pools[0].Problems; len(problems) != 1 || problems[0].Reason != "NoInstanceTypes" {
		t.Errorf("no GPU has the smallest slots: %+v", problems)
	}
}

func TestLimitsOfPoolsWithSlotsCountHardware(t *testing.T) {
	t.Parallel()
	c := withSlots()
	c.GPUNodeClasses[0].Spec.Sharing.Memory.Sizes = []string{"2Gi"}
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", "2"))
	c.Pods = Pods("small", 21, slotted("2gb"))
	view := snapshot.Build(c)
	if plan := solve.Plan(view.Snapshot); len(plan.Launches) != 2 || len(plan.Unplaced) != 7 {
		t.Errorf("%d machines, and %d of 21 pods have no place on two GPUs", len(plan.Launches), len(plan.Unplaced))
	}
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu-2gb", "20"))
	if problems := snapshot.Build(c).Pools[0].Problems; len(problems) != 1 || problems[0].Reason != "UnsupportedLimit" {
		t.Errorf("slots are no hardware: %+v", problems)
	}
}

func TestHeadroomOfSlotsIsOfTheLargest(t *testing.T) {
	t.Parallel()
	c := withSlots()
	c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: 3}}
	view := snapshot.Build(c)
	if len(view.Reserves) != 1 || view.Reserves[0].Class.GPUMemoryBytes != 8<<30 || view.Reserves[0].Class.Requests.Replicas != 1 {
		t.Errorf("%+v", view.Reserves)
	}
	if got := view.SlotsOf(view.Reserves[0].Class.Pods[1]); !slices.Equal(got, []int64{8192}) {
		t.Errorf("its slots are %v", got)
	}
}

func TestSlotsWithMPSHaveAtMostItsClients(t *testing.T) {
	t.Parallel()
	c := withSlots()
	c.GPUNodeClasses[0].Spec.Sharing.Memory = &v1alpha1.MemorySharing{Sizes: []string{"256Mi"}, Enforcement: v1alpha1.MemoryEnforcementMPS, Reserve: "0Mi"}
	view := snapshot.Build(c)
	for _, o := range view.Snapshot.Offerings {
		if o.GPUs[0].Replicas != nodecontract.MaxMPSReplicas || o.Free.Replicas != o.Physical.GPUs*nodecontract.MaxMPSReplicas {
			t.Errorf("%s has %d slots a GPU, and %d", o.InstanceType, o.GPUs[0].Replicas, o.Free.Replicas)
		}
	}
}
