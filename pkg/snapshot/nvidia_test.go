package snapshot_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// nvidiaSlice returns a slice of NVIDIA's driver with whole GPUs, or GPUs with shares. A negative number of shares is of a GPU with a taint.
func nvidiaSlice(node string, shares ...int64) resourcev1.ResourceSlice {
	s := gpus(nodecontract.NVIDIADRADriver, node, 1, shares...)
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		n := d.Capacity[nodecontract.DRAReplicas]
		d.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": {StringValue: new("gpu")}}
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{nodecontract.DRAMemory: {Value: resource.MustParse("15Gi")}}
		if n.Value.Value() > 1 {
			d.AllowMultipleAllocations = new(true)
			d.Capacity["shares"] = n
		}
	}
	return s
}

// The taint of an error that does no harm has no effect on pods.
func TestGPUsOfNVIDIAsDriverCountAsPromised(t *testing.T) {
	t.Parallel()
	harmless := nvidiaSlice("harmless", 1, 1)
	harmless.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "gpu.nvidia.com/xid", Effect: resourcev1.DeviceTaintEffectNone}}
	partial := nvidiaSlice("partial", 1, 1)
	partial.Spec.Pool.ResourceSliceCount = 2
	first, second := nvidiaSlice("complete", 1), nvidiaSlice("complete", 1)
	first.Spec.Pool.ResourceSliceCount, second.Spec.Pool.ResourceSliceCount = 2, 2
	published := facts.PublishedOf([]resourcev1.ResourceSlice{
		nvidiaSlice("whole", 1, 1, -1), nvidiaSlice("shares", 4, 4), harmless, partial, first, second, nvidiaSlice("both", 1), gpus("gpu.karve.sh", "both", 1, 10),
	}, nil)
	for _, c := range []struct {
		name, perGPU string
		want         int64
	}{
		{"whole", "1", 2},
		{"shares", "4", 8},
		{"shares", "1", 0}, // Pods would share a GPU that was promised whole.
		{"whole", "4", 0},
		{"harmless", "1", 2},
		{"partial", "1", 0},
		{"complete", "1", 2},
		{"both", "1", 1},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.name, Annotations: map[string]string{
			nodecontract.BackendAnnotation: nodecontract.BackendNVIDIADRA, nodecontract.ResourceAnnotation: v1alpha1.ResourceGPU, nodecontract.ReplicasPerGPUAnnotation: c.perGPU,
		}}}
		if n := published.On(node).Status.Allocatable[v1alpha1.ResourceGPU]; n.Value() != c.want {
			t.Errorf("node %s that promised %s of each GPU has %s, want %d", c.name, c.perGPU, &n, c.want)
		}
	}
}

// nvidiaCluster returns a cluster with a pool for each backend. All of them can run pods that request nvidia.com/gpu, except that of the agents' driver.
func nvidiaCluster(strategy v1alpha1.Strategy) *facts.Cluster {
	c := snapshottest.Empty()
	c.GPUNodeClasses = []v1alpha1.GPUNodeClass{snapshottest.Class("agents", 10), snapshottest.Class("nvidia", 10), snapshottest.Class("plugin", 10)}
	c.GPUNodeClasses[0].Spec.Sharing.Backend = v1alpha1.BackendDRA
	c.GPUNodeClasses[1].Spec.Sharing = v1alpha1.Sharing{Strategy: strategy, Backend: v1alpha1.BackendNVIDIADRA}
	if strategy == v1alpha1.StrategyTimeSlicing {
		c.GPUNodeClasses[1].Spec.Sharing.Replicas = new(int32(4))
	}
	c.GPUNodeClasses[2].Spec.Sharing.ResourceName = v1alpha1.ResourceGPU
	for _, name := range []string{"agents", "nvidia", "plugin"} {
		c.NodePools = append(c.NodePools, snapshottest.Pool(name, name, snapshottest.Tainted(v1alpha1.ResourceGPUShared)))
	}
	return c
}

// withClaims sets the pods of a cluster, whose claims are of the DeviceClass in the name of each pod up to the dash.
func withClaims(c *facts.Cluster, names ...string) {
	var templates []resourcev1.ResourceClaimTemplate
	var pods []*corev1.Pod
	for _, name := range names {
		class, _, _ := strings.Cut(name, "-")
		template := resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		template.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, Count: 1}}}
		templates = append(templates, template)
		pod := snapshottest.Pod(name, snapshottest.Asking("cpu", "100m"))
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new(name)}}
		pods = append(pods, &pod)
	}
	agents, nvidias := claims.DeviceClass(v1alpha1.ResourceGPUShared), claims.NVIDIADeviceClass()
	objects := claims.New(nil, templates, []resourcev1.DeviceClass{agents, nvidias}, pods)
	for _, pod := range pods {
		c.Pods = append(c.Pods, *objects.On(pod))
	}
}

func TestClaimsGoToThePoolsOfTheirDriver(t *testing.T) {
	t.Parallel()
	for strategy, machines := range map[v1alpha1.Strategy]int{v1alpha1.StrategyNone: 5, v1alpha1.StrategyTimeSlicing: 2} {
		c := nvidiaCluster(strategy)
		withClaims(c, "gpu.nvidia.com-0", "gpu.nvidia.com-1", "gpu.nvidia.com-2", "gpu.nvidia.com-3", "gpu.nvidia.com-4", "gpu.karve.sh-0", "gpu.karve.sh-1")
		view := snapshot.Build(c)
		plan := solve.Plan(view.Snapshot)
		if len(plan.Unplaced) > 0 {
			t.Errorf("%s: %+v", strategy, plan.Unplaced)
		}
		launches := map[string]int{}
		for _, l := range plan.Launches {
			pool := view.Pools[view.Snapshot.Offerings[l.Offering].Pool].NodePool.Name
			launches[pool] += int(view.Offerings[l.Offering].Type.GPU.Count)
			for _, pod := range l.Pods {
				if of := map[string]string{"nvidia": "default/gpu.nvidia.com", "agents": "default/gpu.karve.sh"}[pool]; of == "" || !strings.HasPrefix(pod, of) {
					t.Errorf("%s: pod %s goes to NodePool %s", strategy, pod, pool)
				}
			}
		}
		if launches["nvidia"] != machines || launches["agents"] != 1 || len(launches) != 2 {
			t.Errorf("%s: the launches have the GPUs %v, want %d of NVIDIA's driver", strategy, launches, machines)
		}
	}
}

// A pod that requests the extended resource may run by either mechanism, and is planned for once.
func TestPodsThatRequestNVIDIAsResourceGoToPluginsAndNVIDIAsDriver(t *testing.T) {
	t.Parallel()
	c := nvidiaCluster(v1alpha1.StrategyTimeSlicing)
	c.Pods = []corev1.Pod{snapshottest.Pod("a", snapshottest.Asking("cpu", "1", v1alpha1.ResourceGPU, "1"))}
	view := snapshot.Build(c)
	pools := map[string]bool{}
	for _, i := range view.Classes[0].Offerings {
		pools[view.Pools[view.Snapshot.Offerings[i].Pool].NodePool.Name] = true
	}
	if !pools["nvidia"] || !pools["plugin"] || pools["agents"] {
		t.Errorf("the pod can go to %v", pools)
	}
	if plan := solve.Plan(view.Snapshot); len(plan.Launches) != 1 {
		t.Errorf("%d machines are launched", len(plan.Launches))
	}
	// Several replicas would be on as many GPUs.
	c.Pods = []corev1.Pod{snapshottest.Pod("a", snapshottest.Asking("cpu", "1", v1alpha1.ResourceGPU, "2"))}
	c.GPUNodeClasses, c.NodePools = c.GPUNodeClasses[1:2], c.NodePools[1:2]
	wantBlocked(t, c, planner.ReasonRequestsAboveOne, "backend NVIDIADRA")
	c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone, Backend: v1alpha1.BackendNVIDIADRA}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil || len(class.Offerings) == 0 {
		t.Errorf("two whole GPUs: %+v", class.Blocked)
	}
}

func TestClaimForNVIDIAsDriverIsRefusedWithoutAPoolOfIt(t *testing.T) {
	t.Parallel()
	c := nvidiaCluster(v1alpha1.StrategyNone)
	c.GPUNodeClasses, c.NodePools = slices.Delete(c.GPUNodeClasses, 1, 2), slices.Delete(c.NodePools, 1, 2)
	withClaims(c, "gpu.nvidia.com-0")
	wantBlocked(t, c, planner.ReasonUnsupported, "has a ResourceClaim that no GPU of its NodePools would have", "GPUNodeClass plugin has backend DevicePlugin")
}

// Karpenter may know what NVIDIA's driver publishes on its machines, and then launch one for the same pod.
func TestClaimForNVIDIAsDriverThatStockKarpenterCouldServeIsLeftToIt(t *testing.T) {
	t.Parallel()
	c := nvidiaCluster(v1alpha1.StrategyTimeSlicing)
	c.NodePools = append(c.NodePools, snapshottest.KarpenterPool("stock"))
	withClaims(c, "gpu.nvidia.com-0")
	wantBlocked(t, c, planner.ReasonLeftToKarpenter, "NodePool stock, which Karpenter serves", "add a nodeSelector karpenter.sh/nodepool")
	c.Pods[0].Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: "nvidia"}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil {
		t.Errorf("with a node selector: %+v", class.Blocked)
	}
	c.Pods = nil
	withClaims(c, "gpu.karve.sh-0")
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil {
		t.Errorf("a claim for the agents' driver: %+v", class.Blocked)
	}
}

func TestGPUNodeClassWithNVIDIAsDriverNeedsItsDeviceClass(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.GPUNodeClass{Spec: v1alpha1.GPUNodeClassSpec{Sharing: v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone, Backend: v1alpha1.BackendNVIDIADRA}}}
	unnamed := claims.NVIDIADeviceClass()
	unnamed.Spec.ExtendedResourceName = nil
	for name, c := range map[string]struct {
		dra          facts.DRA
		reason, says string
	}{
		"off":             {facts.DRA{Known: true}, "DRANotEnabled", "spec.sharing.backend is NVIDIADRA"},
		"no driver":       {facts.DRA{Known: true, Enabled: true}, "DeviceClassNotFound", "no DeviceClass of driver gpu.nvidia.com has the extendedResourceName nvidia.com/gpu: install NVIDIA's DRA driver"},
		"no name":         {facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{unnamed}}, "DeviceClassNotFound", "give a DeviceClass of yours the name"},
		"its chart":       {facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{claims.NVIDIADeviceClass()}}, "", ""},
		"the agents' too": {facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{claims.NVIDIADeviceClass(), claims.DeviceClass("nvidia.com/gpu")}}, "ExtendedResourceTaken", "DeviceClass gpu.gpu.karve.sh has the extendedResourceName nvidia.com/gpu too"},
	} {
		if reason, message := c.dra.Problem(class); reason != c.reason || !strings.Contains(message, c.says) {
			t.Errorf("%s: %s %q, want %s with %q", name, reason, message, c.reason, c.says)
		}
	}
}
