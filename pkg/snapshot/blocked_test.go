package snapshot_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// wantBlocked fails unless the cluster's only class is blocked for the reason with a message that contains the words.
func wantBlocked(t *testing.T, c *facts.Cluster, reason planner.Reason, words ...string) {
	t.Helper()
	classes := snapshot.Build(c).Classes
	if len(classes) != 1 {
		t.Fatalf("%d classes", len(classes))
	}
	blocked := classes[0].Blocked
	if blocked == nil || blocked.Reason != reason {
		t.Fatalf("blocked: %+v, want %s", blocked, reason)
	}
	for _, w := range words {
		if !strings.Contains(blocked.Message, w) {
			t.Errorf("message %q does not say %q", blocked.Message, w)
		}
	}
}

func TestPodsWithResourceClaimsAreBlocked(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("a", func(pod *corev1.Pod) { pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x"}} })}
	wantBlocked(t, c, planner.ReasonUnsupported, "uses resource claims, which Karve does not plan for yet")
}

func TestPodThatRequestsUnavailableResourceIsBlocked(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu.shared", "1", "nvidia.com/gpu", "1", "cpu", "1"))}
	wantBlocked(t, c, planner.ReasonTooLarge, "asks for nvidia.com/gpu besides nvidia.com/gpu.shared, which no machine of NodePool gpu-shared has")
}

func TestPodThatNoPoolAdmitsGetsReasonOfEachPool(t *testing.T) {
	t.Parallel()
	c := Recipe()
	c.NodePools = append(c.NodePools, Pool("lost", "nowhere"), Pool("renamed", "renamed", Tainted("x")),
		Pool("empty", "gpu", Requiring(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "arm64")))
	c.GPUNodeClasses = append(c.GPUNodeClasses, Class("renamed", 4))
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu", "1"), Selecting("jina.ai/node-type", "gpu-shared"), Tolerating("nvidia.com/gpu"))}
	wantBlocked(t, c, planner.ReasonNoPool, "asks for nvidia.com/gpu, and no NodePool with a GPUNodeClass serves it: "+
		"NodePool empty: no instance type with a GPU meets spec.template.spec.requirements: loosen them; "+
		"NodePool gpu: label jina.ai/node-type is not gpu-shared; "+
		"NodePool gpu-shared: taint nvidia.com/gpu-shared:NoSchedule is not tolerated; "+
		"NodePool lost: its GPUNodeClass does not exist; "+
		"NodePool renamed: it offers nvidia.com/gpu.shared")
	c.NodePools = nil
	wantBlocked(t, c, planner.ReasonNoPool, "there is none; create one")
}

// While AWS does not answer, Karve does not know which machines a pool could launch.
func TestPodGetsReasonPoolClosedDuringCloudOutage(t *testing.T) {
	t.Parallel()
	c := Shared()
	machine := Claim("one", &c.NodePools[0], &Types()[3], Initialized(Now))
	c.NodeClasses[NodeClassRef] = facts.NodeClassState{Reason: "CatalogUnavailable", Message: "EC2 DescribeInstanceTypes gets no answer"}
	c.Pods = []corev1.Pod{Pod("a")}
	wantBlocked(t, c, planner.ReasonPoolClosed, "nothing can be launched at present", "NodePool gpu-shared", "EC2 DescribeInstanceTypes gets no answer")

	c.NodeClaims, c.Nodes = []karpv1.NodeClaim{machine}, []corev1.Node{Node(&machine, &Types()[3], 10)}
	for i := range 12 {
		c.Pods = append(c.Pods, Pod(fmt.Sprint("b-", i)))
	}
	plan := solve.Plan(snapshot.Build(c).Snapshot)
	if len(plan.Placements) == 0 || len(plan.Unplaced) != 3 {
		t.Fatalf("%d pods are unplaced, want 3 of 13", len(plan.Unplaced))
	}
	for _, u := range plan.Unplaced {
		if u.Reason != planner.ReasonPoolClosed || !strings.Contains(u.Message, "EC2 DescribeInstanceTypes gets no answer") || strings.Contains(u.Message, "nodeSelector") {
			t.Errorf("%s is told %s: %s", u.Pod, u.Reason, u.Message)
		}
	}
}

func TestReasonNamesBestMatchingPoolFirst(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools = append(c.NodePools, Pool("another", "gpu-shared", Tainted("another")))
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu.shared", "1"), Selecting("team", "red"))}
	wantBlocked(t, c, planner.ReasonNoPool, "serves it: NodePool gpu-shared: label team is not red; NodePool another: taint another:NoSchedule is not tolerated")
}

func TestPodThatRequestsRefusedReplicaCountIsBlocked(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu.shared", "2"))}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil {
		t.Errorf("blocked where it is allowed: %+v", class.Blocked)
	}
	c.GPUNodeClasses[0].Spec.Sharing.RequestsAboveOne = v1alpha1.RequestsAboveOneRefuse
	wantBlocked(t, c, planner.ReasonRequestsAboveOne, "asks for 2 replicas in one container, and GPUNodeClass gpu-shared refuses more than one")
	if n := len(snapshot.Build(c).Classes[0].Offerings); n != 0 {
		t.Errorf("it is admitted by %d offerings of the pool that refuses it", n)
	}
	c.GPUNodeClasses = append(c.GPUNodeClasses, Class("lenient", 10))
	c.NodePools = append(c.NodePools, Pool("lenient", "lenient", Tainted(v1alpha1.ResourceGPUShared)))
	view := snapshot.Build(c)
	if class := view.Classes[0]; class.Blocked != nil || len(class.Offerings) != 8 {
		t.Errorf("with a pool that allows it: %d offerings, blocked %+v", len(class.Offerings), class.Blocked)
	}
	for _, i := range view.Classes[0].Offerings {
		if pool := view.Snapshot.Pools[view.Snapshot.Offerings[i].Pool].Name; pool != "lenient" {
			t.Errorf("admitted by pool %s", pool)
		}
	}
	c.Pods = []corev1.Pod{Pod("a")}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil || len(class.Offerings) != 16 {
		t.Errorf("a pod that asks for one: %d offerings, blocked %+v", len(class.Offerings), class.Blocked)
	}
}

// The scheduler would want as many GPUs, and the plan has them on one.
func TestPodThatRequestsSeveralReplicasIsBlockedByDRA(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu.shared", "2"))}
	c.GPUNodeClasses[0].Spec.Sharing.Backend = v1alpha1.BackendDRA
	wantBlocked(t, c, planner.ReasonRequestsAboveOne, "gives each replica of a container another GPU: ask for one")
	c.Pods = []corev1.Pod{Pod("a")}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil || len(class.Offerings) == 0 {
		t.Errorf("a pod that asks for one: %d offerings, blocked %+v", len(class.Offerings), class.Blocked)
	}
}

func TestPodThatStockKarpenterCanServeIsLeftToIt(t *testing.T) {
	t.Parallel()
	c := Recipe()
	c.NodePools = append(c.NodePools, KarpenterPool("stock-b"), KarpenterPool("stock-a"))
	asks := func(n string, edits ...func(*corev1.Pod)) {
		c.Pods = []corev1.Pod{Pod("a", append([]func(*corev1.Pod){Asking("cpu", "1", "nvidia.com/gpu", n), Tolerating("nvidia.com/gpu-shared")}, edits...)...)}
	}
	asks("1")
	wantBlocked(t, c, planner.ReasonLeftToKarpenter, "NodePool stock-a, which Karpenter serves, could take it as well as gpu-shared",
		"add a nodeSelector karpenter.sh/nodepool: gpu-shared to the pod, or a taint to NodePool stock-a")
	for name, edit := range map[string]func(*corev1.Pod){
		"a selector of our pool":         Selecting(karpv1.NodePoolLabelKey, "gpu-shared"),
		"a label that only our pool has": Selecting("jina.ai/node-type", "gpu-shared"),
		"more GPUs than a machine has":   Asking("nvidia.com/gpu", "5"),
		"more CPU than a machine has":    Asking("cpu", "48", "nvidia.com/gpu", "1"),
		"affinity that excludes stock's": func(pod *corev1.Pod) {
			pod.Spec.Affinity = required(expression("jina.ai/gpu-type", corev1.NodeSelectorOpExists))
		},
	} {
		asks("1", edit)
		if class := snapshot.Build(c).Classes[0]; class.Blocked != nil {
			t.Errorf("with %s: %+v", name, class.Blocked)
		}
	}
}

func TestKarpenterPoolThatCannotLaunchForPodDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit   func(*karpv1.NodePool)
		counts bool
	}{
		"unrestricted": {func(*karpv1.NodePool) {}, true},
		"static":       {func(np *karpv1.NodePool) { np.Spec.Replicas = new(int64(1)) }, false},
		"tainted":      {Tainted("x"), false},
		"tainted with PreferNoSchedule": {func(np *karpv1.NodePool) {
			Tainted("x")(np)
			np.Spec.Template.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule
		}, true},
		"limited to zero":                       {func(np *karpv1.NodePool) { np.Spec.Limits = karpv1.Limits(Amounts("cpu", "0")) }, false},
		"without GPU machines":                  {Requiring("karpenter.k8s.aws/instance-gpu-count", corev1.NodeSelectorOpDoesNotExist), false},
		"of EKS Auto Mode":                      {autoMode("eks.amazonaws.com/instance-family", "g4dn", "m5"), true},
		"of EKS Auto Mode, as its labels say":   {autoMode("eks.amazonaws.com/compute-type", "auto"), true},
		"of EKS Auto Mode without GPU machines": {autoMode("eks.amazonaws.com/instance-family", "c5", "m5"), false},
		"of EKS Auto Mode with other GPUs":      {autoMode("eks.amazonaws.com/instance-gpu-name", "l4"), false},
		"in another zone":                       {Labeled(map[string]string{corev1.LabelTopologyZone: "us-east-1z"}), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Recipe()
			c.NodePools = append(c.NodePools, KarpenterPool("stock", tc.edit))
			c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu", "1"), Tolerating("nvidia.com/gpu-shared"))}
			if blocked := snapshot.Build(c).Classes[0].Blocked; (blocked != nil) != tc.counts {
				t.Errorf("blocked: %+v", blocked)
			}
		})
	}
}

// autoMode makes a pool one of EKS Auto Mode, with a requirement.
func autoMode(key string, values ...string) func(*karpv1.NodePool) {
	return func(np *karpv1.NodePool) {
		np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "eks.amazonaws.com", Kind: "NodeClass", Name: "default"}
		Requiring(key, corev1.NodeSelectorOpIn, values...)(np)
	}
}

func TestPodThatSelectsAutoModeIsLeftToIt(t *testing.T) {
	t.Parallel()
	c := Recipe()
	c.NodePools = append(c.NodePools, KarpenterPool("auto", autoMode("eks.amazonaws.com/instance-family", "g4dn")))
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu", "1"), Tolerating("nvidia.com/gpu-shared"), Selecting("eks.amazonaws.com/compute-type", "auto"))}
	if view := snapshot.Build(c); len(view.Classes) != 0 {
		t.Errorf("classes: %+v", view.Classes)
	}
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu", "1"), Tolerating("nvidia.com/gpu-shared"), Selecting("karpenter.k8s.aws/instance-family", "g4dn"))}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil {
		t.Errorf("a pod that selects a label of our Karpenter is %+v", class.Blocked)
	}
}

func TestNodeOverlayAddsReplicasToKarpenterPools(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools = append(c.NodePools, KarpenterPool("stock"))
	c.Pods = []corev1.Pod{Pod("a")}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil {
		t.Fatalf("without an overlay: %+v", class.Blocked)
	}
	overlay := karpv1alpha1.NodeOverlay{}
	overlay.Spec.Capacity = Amounts("nvidia.com/gpu.shared", "10")
	overlay.Spec.Requirements = []karpv1alpha1.NodeSelectorRequirement{{Key: "karpenter.k8s.aws/instance-family", Operator: corev1.NodeSelectorOpIn, Values: []string{"p5"}}}
	c.NodeOverlays = []karpv1alpha1.NodeOverlay{overlay}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil {
		t.Fatalf("with an overlay for other machines: %+v", class.Blocked)
	}
	overlay.Spec.Requirements[0].Values = []string{"g4dn"}
	wantBlocked(t, c, planner.ReasonLeftToKarpenter, "NodePool stock, which Karpenter serves")
}

func TestPodThatOnlyStockKarpenterServesIsIgnored(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools = append(c.NodePools, KarpenterPool("stock"))
	c.Pods = []corev1.Pod{Pod("a", Asking("nvidia.com/gpu", "1"))}
	if view := snapshot.Build(c); len(view.Classes) != 0 || len(view.Pods) != 0 {
		t.Errorf("classes: %+v", view.Classes)
	}
}
