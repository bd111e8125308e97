package snapshot_test

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestPoolReportsWhyItCannotLaunch(t *testing.T) {
	t.Parallel()
	deleted := metav1.NewTime(Now)
	pool := func(edit func(*karpv1.NodePool)) func(*facts.Cluster) {
		return func(c *facts.Cluster) { edit(&c.NodePools[0]) }
	}
	types := func(edit func(*catalog.InstanceType), images []facts.Image) func(*facts.Cluster) {
		return func(c *facts.Cluster) {
			state := c.NodeClasses[NodeClassRef]
			for i := range state.InstanceTypes {
				edit(&state.InstanceTypes[i])
			}
			state.Images = images
			c.NodeClasses[NodeClassRef] = state
		}
	}
	for name, tc := range map[string]struct {
		edit      func(*facts.Cluster)
		condition string
		reason    string
		message   string
	}{
		"no node class": {
			func(c *facts.Cluster) { c.GPUNodeClasses = nil },
			karpv1.ConditionTypeNodeClassReady, "GPUNodeClassNotFound", `GPUNodeClass "gpu-shared" does not exist: create it`,
		},
		"a deleted node class": {
			func(c *facts.Cluster) { c.GPUNodeClasses[0].DeletionTimestamp = &deleted },
			karpv1.ConditionTypeNodeClassReady, "GPUNodeClassTerminating", `GPUNodeClass "gpu-shared" is being deleted`,
		},
		"the cloud's node class is not ready": {
			func(c *facts.Cluster) {
				c.NodeClasses[NodeClassRef] = facts.NodeClassState{Reason: "NoSubnets", Message: "no subnet found"}
			},
			karpv1.ConditionTypeNodeClassReady, "NoSubnets", `GPUNodeClass "gpu-shared": no subnet found`,
		},
		"the cloud's node class is not ready and does not say why": {
			func(c *facts.Cluster) { c.NodeClasses[NodeClassRef] = facts.NodeClassState{} },
			karpv1.ConditionTypeNodeClassReady, "NodeClassNotReady", `GPUNodeClass "gpu-shared": EC2NodeClass "gpu" is not Ready`,
		},
		"the cloud's node class is unknown": {
			func(c *facts.Cluster) { c.NodeClasses = nil },
			karpv1.ConditionTypeNodeClassReady, "NodeClassNotFound", `GPUNodeClass "gpu-shared": EC2NodeClass "gpu" is not known`,
		},
		"a fixed number of nodes": {
			pool(func(np *karpv1.NodePool) { np.Spec.Replicas = new(int64(2)) }),
			karpv1.ConditionTypeValidationSucceeded, "StaticPool", "spec.replicas asks for a fixed number of nodes",
		},
		"no taint": {
			pool(func(np *karpv1.NodePool) { np.Spec.Template.Spec.Taints = nil }),
			karpv1.ConditionTypeValidationSucceeded, "NoTaint", "such as {key: nvidia.com/gpu.shared, effect: NoSchedule}",
		},
		"a taint with PreferNoSchedule": {
			pool(func(np *karpv1.NodePool) { np.Spec.Template.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule }),
			karpv1.ConditionTypeValidationSucceeded, "NoTaint", "shared nodes need a taint",
		},
		"only a startup taint": {
			pool(func(np *karpv1.NodePool) {
				np.Spec.Template.Spec.StartupTaints, np.Spec.Template.Spec.Taints = np.Spec.Template.Spec.Taints, nil
			}),
			karpv1.ConditionTypeValidationSucceeded, "NoTaint", "shared nodes need a taint",
		},
		"minValues of a custom label": {
			pool(func(np *karpv1.NodePool) {
				Requiring("team", corev1.NodeSelectorOpIn, "red", "blue")(np)
				np.Spec.Template.Spec.Requirements[0].MinValues = new(2)
			}),
			karpv1.ConditionTypeValidationSucceeded, "UnsupportedMinValues", `minValues of requirement "team" cannot be kept`,
		},
		"an unsupported limit": {
			pool(func(np *karpv1.NodePool) { np.Spec.Limits = karpv1.Limits(Amounts("ephemeral-storage", "1Ti")) }),
			karpv1.ConditionTypeValidationSucceeded, "UnsupportedLimit",
			`limit "ephemeral-storage" cannot be enforced: use cpu, memory, nodes, nvidia.com/gpu (physical GPUs) or nvidia.com/gpu.shared (replicas)`,
		},
		"no instance type": {
			pool(Requiring(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "riscv64")),
			karpv1.ConditionTypeValidationSucceeded, "NoInstanceTypes", "loosen them",
		},
		"instance types that the catalog does not have": {
			pool(Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g9.xlarge", "g9.2xlarge")),
			karpv1.ConditionTypeValidationSucceeded, "NoInstanceTypes", "the catalog has no instance type with a GPU whose node.kubernetes.io/instance-type is g9.2xlarge, g9.xlarge: correct the name or",
		},
		"a family that the catalog does not have": {
			func(c *facts.Cluster) {
				Requiring("karpenter.k8s.aws/instance-family", corev1.NodeSelectorOpIn, "g9")(&c.NodePools[0])
				for ref, state := range c.NodeClasses {
					state.CatalogRead = time.Date(2026, 8, 21, 9, 0, 0, 0, time.UTC)
					c.NodeClasses[ref] = state
				}
			},
			karpv1.ConditionTypeValidationSucceeded, "NoInstanceTypes", "the catalog of 2026-08-21 has no instance type with a GPU whose karpenter.k8s.aws/instance-family is g9: ",
		},
		"a zone without offerings": {
			pool(Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "us-east-1f")),
			karpv1.ConditionTypeValidationSucceeded, "NoInstanceTypes", "is not offered in a zone and at a capacity type that spec.template.spec.requirements allow, but as on-demand in us-east-1a",
		},
		"types without a known image": {
			types(func(it *catalog.InstanceType) { it.Offerings = nil }, nil),
			karpv1.ConditionTypeNodeClassReady, "NoImage", `EC2NodeClass "gpu" has no image, so`,
		},
		"types without a price, or a zone": {
			types(func(it *catalog.InstanceType) { it.Offerings = nil }, []facts.Image{{ID: "ami-1"}}),
			karpv1.ConditionTypeNodeClassReady, "NotOffered", "is not offered in any zone in which EC2NodeClass",
		},
		"types with an image of another architecture": {
			types(func(it *catalog.InstanceType) { it.Offerings = nil }, []facts.Image{{ID: "ami-1", Requirements: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"arm64"}},
			}}}),
			karpv1.ConditionTypeNodeClassReady, "NoImage", `(amd64, with GPUs)`,
		},
		"types with a fractional GPU": {
			types(func(it *catalog.InstanceType) { it.GPU.Count = 0 }, nil),
			karpv1.ConditionTypeValidationSucceeded, "NoInstanceTypes", "has only a part of a GPU",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.Pods = []corev1.Pod{Pod("a")}
			tc.edit(c)
			view := snapshot.Build(c)
			problems := view.Pools[0].Problems
			if len(problems) != 1 {
				t.Fatalf("problems: %+v", problems)
			}
			if p := problems[0]; p.Condition != tc.condition || p.Reason != tc.reason || !strings.Contains(p.Message, tc.message) {
				t.Errorf("problem %+v, want %s, %s, …%s…", p, tc.condition, tc.reason, tc.message)
			}
			closed := view.Snapshot.Pools[0].Closed
			if closed == nil || closed.Reason != planner.ReasonPoolClosed || !strings.Contains(closed.Message, tc.reason) {
				t.Errorf("the pool is not closed for it: %+v", closed)
			}
		})
	}
}

func TestValidPoolHasNoProblemsAndIsOpen(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(Shared())
	if p := view.Pools[0].Problems; len(p) != 0 || view.Snapshot.Pools[0].Closed != nil {
		t.Errorf("problems %+v, closed %+v", p, view.Snapshot.Pools[0].Closed)
	}
}

func TestPoolOfWholeGPUsNeedsNoTaintAndNoSharedLimit(t *testing.T) {
	t.Parallel()
	c := Empty()
	c.GPUNodeClasses = []v1alpha1.GPUNodeClass{Class("gpu", 0)}
	c.NodePools = []karpv1.NodePool{Pool("gpu", "gpu")}
	if p := snapshot.Pools(c)[0].Problems; len(p) != 0 {
		t.Errorf("problems without a taint: %+v", p)
	}
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts(v1alpha1.ResourceGPUShared, "10"))
	if p := snapshot.Pools(c)[0].Problems; len(p) != 1 || p[0].Reason != "UnsupportedLimit" || strings.Contains(p[0].Message, "or nvidia.com/gpu.shared") {
		t.Errorf("problems with a limit of replicas that the pool does not have: %+v", p)
	}
}

func TestSnapshotTakesWeightAndMinValuesFromPool(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools = append(c.NodePools, Pool("light", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared)))
	heavy := &c.NodePools[0]
	heavy.Spec.Weight = new(int32(10))
	for _, edit := range []func(*karpv1.NodePool){
		Requiring("beta.kubernetes.io/instance-type", corev1.NodeSelectorOpNotIn, "g4dn.12xlarge"), Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpExists),
		Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpExists), Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists),
	} {
		edit(heavy)
	}
	heavy.Spec.Template.Spec.Requirements[0].MinValues = new(3)
	heavy.Spec.Template.Spec.Requirements[1].MinValues = new(2)
	heavy.Spec.Template.Spec.Requirements[2].MinValues = new(2)
	view := snapshot.Build(c)
	if p := view.Snapshot.Pools; p[0].Weight != 10 || p[1].Weight != 0 || p[1].MinValues != nil || len(view.Pools[0].Problems) > 0 {
		t.Errorf("pools %+v, problems %+v", p, view.Pools[0].Problems)
	}
	got := view.Snapshot.Pools[0].MinValues
	if len(got) != 2 || got[0].Key != corev1.LabelInstanceTypeStable || got[0].Min != 3 || got[1].Key != corev1.LabelTopologyZone || got[1].Min != 2 {
		t.Fatalf("minValues: %+v", got)
	}
	for i, o := range view.Snapshot.Offerings {
		if got[0].Values[i] != o.InstanceType || got[1].Values[i] != o.Zone {
			t.Errorf("offering %d is %s in %s, and has the values %s and %s", i, o.InstanceType, o.Zone, got[0].Values[i], got[1].Values[i])
		}
	}
}

func TestDeletedPoolIsClosed(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools[0].DeletionTimestamp = new(metav1.NewTime(Now))
	if closed := snapshot.Build(c).Snapshot.Pools[0].Closed; closed == nil || closed.Message != "NodePool gpu-shared is being deleted" {
		t.Errorf("closed: %+v", closed)
	}
}

// Karpenter counts ten replicas as ten GPUs.
func TestLimitsCountHardware(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", "8", "nvidia.com/gpu.shared", "60", "cpu", "100", "memory", "400Gi", "nodes", "3"))
	c.NodeClaims = []karpv1.NodeClaim{
		Claim("one", &c.NodePools[0], TypeNamed("g4dn.xlarge")),
		Claim("four", &c.NodePools[0], TypeNamed("g4dn.12xlarge"), Initialized(Now), func(claim *karpv1.NodeClaim) {
			claim.DeletionTimestamp = new(metav1.NewTime(Now))
		}),
		Claim("other", &c.NodePools[0], TypeNamed("g4dn.xlarge"), func(claim *karpv1.NodeClaim) { claim.Labels[karpv1.NodePoolLabelKey] = "other" }),
	}
	want := planner.Physical{MilliCPU: 100_000 - 52_000, MemoryBytes: (400 - 208) << 30, GPUs: 8 - 5, Replicas: 60 - 50, Nodes: 3 - 2}
	if diff := cmp.Diff(want, snapshot.Build(c).Snapshot.Pools[0].Remaining); diff != "" {
		t.Errorf("remaining (-want +got):\n%s", diff)
	}
}

func TestLimitOfUnrenamedReplicasCountsGPUs(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing.ResourceName = v1alpha1.ResourceGPU
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", "8"))
	c.NodeClaims = []karpv1.NodeClaim{Claim("one", &c.NodePools[0], TypeNamed("g4dn.xlarge"))}
	u := planner.Unlimited
	want := planner.Physical{MilliCPU: u, MemoryBytes: u, GPUs: 7, Replicas: u, Nodes: u}
	if diff := cmp.Diff(want, snapshot.Build(c).Snapshot.Pools[0].Remaining); diff != "" {
		t.Errorf("remaining (-want +got):\n%s", diff)
	}
}

func TestMachineOfUnknownTypeCountsCapacityOfClaim(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("cpu", "100", "nvidia.com/gpu", "8"))
	c.NodeClaims = []karpv1.NodeClaim{Claim("one", &c.NodePools[0], TypeNamed("g4dn.12xlarge"))}
	c.UseInstanceTypes(nil)
	for _, tc := range []struct {
		capacity corev1.ResourceList
		milliCPU int64
	}{{nil, 99_700}, {Amounts("cpu", "48", "memory", "192Gi"), 52_000}} {
		c.NodeClaims[0].Status.Capacity = tc.capacity
		if got := snapshot.Build(c).Snapshot.Pools[0].Remaining; got.MilliCPU != tc.milliCPU || got.GPUs != 4 {
			t.Errorf("capacity %v: remaining %+v", tc.capacity, got)
		}
	}
}

// The breaker prevents nodes whose replicas never come from wasting money.
func TestUnhealthyPoolIsClosedAndProbedPoolLaunchesOneMachine(t *testing.T) {
	t.Parallel()
	healthy := func(c *facts.Cluster, is metav1.ConditionStatus) {
		c.NodePools[0].Status.Conditions = []status.Condition{{Type: v1alpha1.ConditionReplicasHealthy, Status: is, Message: "the plugin is broken"}}
	}
	c := Shared()
	healthy(c, metav1.ConditionFalse)
	if closed := snapshot.Build(c).Snapshot.Pools[0].Closed; closed == nil || !strings.HasSuffix(closed.Message, "launches nothing at present: the plugin is broken") {
		t.Errorf("unhealthy: closed %+v", closed)
	}
	healthy(c, metav1.ConditionUnknown)
	if p := snapshot.Build(c).Snapshot.Pools[0]; p.Closed != nil || p.Remaining.Nodes != 1 || p.Remaining.GPUs != planner.Unlimited {
		t.Errorf("to be tried: %+v", p)
	}
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nodes", "0"))
	if p := snapshot.Build(c).Snapshot.Pools[0]; p.Remaining.Nodes != 0 {
		t.Errorf("to be tried within a limit of no nodes: %+v", p)
	}
	c.NodePools[0].Spec.Limits = nil
	c.NodeClaims = []karpv1.NodeClaim{Claim("probe", &c.NodePools[0], TypeNamed("g4dn.xlarge"))}
	if closed := snapshot.Build(c).Snapshot.Pools[0].Closed; closed == nil || !strings.Contains(closed.Message, "until it is seen whether probe starts and exposes its replicas") {
		t.Errorf("while it is tried: closed %+v", closed)
	}
	healthy(c, metav1.ConditionTrue)
	if p := snapshot.Build(c).Snapshot.Pools[0]; p.Closed != nil || p.Remaining.Nodes != planner.Unlimited {
		t.Errorf("healthy: %+v", p)
	}
}

// For twenty pods, the planner would choose a g4dn.12xlarge as the one machine that it may launch.
func TestPoolIsProbedWithCheapestMachineThatHoldsPendingPod(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pod  func(*corev1.Pod)
		want string
	}{
		"small pods":            {Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"), "g4dn.xlarge"},
		"large pods":            {Asking("cpu", "6", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"), "g4dn.2xlarge"},
		"pods with an FPGA":     {Asking(fpga, "1", v1alpha1.ResourceGPUShared, "1"), "g4dn.4xlarge"},
		"pods of a large model": {GPUMemory("20Gi"), "g4dn.12xlarge"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.NodePools[0].Status.Conditions = []status.Condition{{Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionUnknown}}
			types := c.InstanceTypes()
			for i := range types {
				switch types[i].Name {
				case "g4dn.4xlarge":
					types[i].Extended = map[string]int64{fpga: 1}
				case "g4dn.12xlarge":
					types[i].GPU.MemoryMiB = 32768
				}
			}
			c.Pods = Pods("p", 20, tc.pod)
			view := snapshot.Build(c)
			plan := solve.Plan(view.Snapshot)
			if err := check.Plan(view.Snapshot, plan); err != nil {
				t.Fatal(err)
			}
			if len(plan.Launches) != 1 || view.Offerings[plan.Launches[0].Offering].Type.Name != tc.want {
				t.Errorf("launches %+v, want one %s", plan.Launches, tc.want)
			}
			for _, u := range plan.Unplaced {
				if u.Reason != planner.ReasonPoolClosed || !strings.Contains(u.Message, "one machine to see whether") {
					t.Errorf("%s is told %s: %s", u.Pod, u.Reason, u.Message)
				}
			}
		})
	}
}

func TestBrokenMachineClosesPoolAtOnce(t *testing.T) {
	t.Parallel()
	c := machine(Registered(Now.Add(-time.Hour)), 0)
	if closed := snapshot.Build(c).Snapshot.Pools[0].Closed; closed == nil || !strings.Contains(closed.Message, "until it is seen whether m starts and exposes its replicas") {
		t.Errorf("closed %+v", closed)
	}
}

// A user may debug a broken machine for days. The pool is probed nevertheless.
func TestBrokenMachineOlderThanConditionDoesNotClosePool(t *testing.T) {
	t.Parallel()
	for status, closed := range map[metav1.ConditionStatus]bool{metav1.ConditionTrue: false, metav1.ConditionUnknown: false, metav1.ConditionFalse: true} {
		c := machine(Registered(Now.Add(-time.Hour)), 0)
		c.NodeClaims[0].CreationTimestamp = metav1.NewTime(Now.Add(-time.Hour))
		c.NodePools[0].StatusConditions().Set(statusOf(status, Now.Add(-time.Minute)))
		c.NodePools[0].Status.Conditions[0].LastTransitionTime = metav1.NewTime(Now.Add(-time.Minute))
		if got := snapshot.Build(c).Snapshot.Pools[0].Closed; (got != nil) != closed {
			t.Errorf("%s: closed %+v", status, got)
		}
	}
}

func statusOf(s metav1.ConditionStatus, at time.Time) status.Condition {
	return status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: s, Reason: "Said", LastTransitionTime: metav1.NewTime(at)}
}

func TestRecipePodsAreAdmittedOnlyByTheirOwnPool(t *testing.T) {
	t.Parallel()
	c := Recipe()
	for _, name := range []string{"gpu-shared", "gpu"} {
		c.Pods = append(c.Pods, Pod("test-"+name, Asking("cpu", "300m", "nvidia.com/gpu", "1"), Selecting("jina.ai/node-type", name), Tolerating("nvidia.com/"+name)))
	}
	view := snapshot.Build(c)
	if len(view.Classes) != 2 {
		t.Fatalf("classes: %+v", view.Classes)
	}
	for _, class := range view.Classes {
		pool := strings.TrimPrefix(class.Pods[0], "default/test-")
		if class.Blocked != nil || len(class.Offerings) != 4*2*2 {
			t.Errorf("%s: %d offerings, blocked %+v", class.Pods[0], len(class.Offerings), class.Blocked)
		}
		for _, i := range class.Offerings {
			o := view.Snapshot.Offerings[i]
			if got := view.Snapshot.Pools[o.Pool].Name; got != pool {
				t.Errorf("%s is admitted by %s of pool %s", class.Pods[0], o.InstanceType, got)
			}
			perGPU := map[string]int64{"gpu-shared": 10, "gpu": 1}[pool]
			if o.Free.Replicas != perGPU*o.Physical.GPUs {
				t.Errorf("%s of pool %s has %d replicas", o.InstanceType, pool, o.Free.Replicas)
			}
		}
	}
	for _, p := range view.Snapshot.Pools {
		if p.Closed != nil || p.Remaining.MilliCPU != 1_000_000 {
			t.Errorf("pool %+v", p)
		}
	}
}
