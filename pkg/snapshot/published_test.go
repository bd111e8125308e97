package snapshot_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// gpus returns the slice of a node with GPUs of these numbers of replicas. A negative number is of a GPU with a taint.
func gpus(driver, node string, generation int64, replicas ...int64) resourcev1.ResourceSlice {
	s := resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: 1}}}
	for _, n := range replicas {
		var d resourcev1.Device
		if n < 0 {
			n, d.Taints = -n, []resourcev1.DeviceTaint{{Key: nodecontract.DRAUnhealthyTaint, Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{nodecontract.DRAReplicas: {Value: *resource.NewQuantity(n, resource.DecimalSI)}}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	return s
}

// of sets the resource that serves the devices of a slice.
func of(name string, s resourcev1.ResourceSlice) resourcev1.ResourceSlice {
	for i := range s.Spec.Devices {
		s.Spec.Devices[i].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{nodecontract.DRAResource: {StringValue: &name}}
	}
	return s
}

func TestReplicasOfSlicesCountAsAllocatable(t *testing.T) {
	t.Parallel()
	published := facts.PublishedOf([]resourcev1.ResourceSlice{
		gpus("gpu.karve.sh", "four", 3, 10, 10, -10, 10), gpus("gpu.karve.sh", "four", 2, 10, 10, 10, 10), // The older slice has yet to go.
		gpus("gpu.nvidia.com", "one", 1, 10), gpus("gpu.karve.sh", "one", 1, 10), gpus("gpu.karve.sh", "sick", 1, -10),
		of("nvidia.com/mig-1g.5gb", gpus("gpu.karve.sh", "instances", 1, 1, 1)), of(v1alpha1.ResourceGPUShared, gpus("gpu.karve.sh", "named", 1, 10)),
	}, nil)
	for name, want := range map[string]int64{"four": 30, "one": 10, "sick": 0, "none": 0, "instances": 0, "named": 10} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{nodecontract.BackendAnnotation: nodecontract.BackendDRA, nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared}},
			Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}},
		}
		now := published.On(node)
		shared := now.Status.Allocatable[v1alpha1.ResourceGPUShared]
		if shared.Value() != want || now.Status.Allocatable.Cpu().Value() != 4 {
			t.Errorf("%s has %v, want %d replicas", name, now.Status.Allocatable, want)
		}
		if _, changed := node.Status.Allocatable[v1alpha1.ResourceGPUShared]; changed {
			t.Errorf("%s belongs to a cache, and was changed", name)
		}
	}
	divided := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "instances", Annotations: map[string]string{nodecontract.BackendAnnotation: nodecontract.BackendDRA, nodecontract.ResourceAnnotation: "nvidia.com/mig-1g.5gb"}}}
	instances := published.On(divided).Status.Allocatable["nvidia.com/mig-1g.5gb"]
	if instances.Value() != 2 {
		t.Errorf("a node with two instances has %s", &instances)
	}
	plugin := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Annotations: map[string]string{nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared}}}
	if now := published.On(plugin); now != plugin {
		t.Errorf("a node of the device plugin has %v", now.Status.Allocatable)
	}
}

// taintRule returns a rule that keeps pods off the devices that a selector matches.
func taintRule(name string, by *resourcev1.DeviceTaintSelector) resourcev1.DeviceTaintRule {
	return resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: by, Taint: resourcev1.DeviceTaint{Key: "example.com/maintenance", Effect: resourcev1.DeviceTaintEffectNoSchedule},
	}}
}

func TestDevicesThatARuleTaintsCountAsCordoned(t *testing.T) {
	t.Parallel()
	two := gpus("gpu.karve.sh", "two", 1, 10, 10)
	two.Spec.Devices[0].Name, two.Spec.Devices[1].Name = "gpu-0", "gpu-1"
	harmless := taintRule("harmless", &resourcev1.DeviceTaintSelector{})
	harmless.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNone
	for _, c := range []struct {
		rule resourcev1.DeviceTaintRule
		want int64
	}{
		{taintRule("one", &resourcev1.DeviceTaintSelector{Driver: new("gpu.karve.sh"), Pool: new("two"), Device: new("gpu-1")}), 10},
		{taintRule("node", &resourcev1.DeviceTaintSelector{Pool: new("two")}), 0},
		{taintRule("all", &resourcev1.DeviceTaintSelector{}), 0},
		{taintRule("none", nil), 20},
		{taintRule("other-node", &resourcev1.DeviceTaintSelector{Pool: new("three")}), 20},
		{taintRule("other-driver", &resourcev1.DeviceTaintSelector{Driver: new("gpu.nvidia.com"), Pool: new("two")}), 20},
		{harmless, 20},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two", Annotations: map[string]string{nodecontract.BackendAnnotation: nodecontract.BackendDRA, nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: nodecontract.CordonCondition, Status: corev1.ConditionFalse}}
		now := facts.PublishedOf([]resourcev1.ResourceSlice{two}, []resourcev1.DeviceTaintRule{c.rule}).On(node)
		if got := now.Status.Allocatable[v1alpha1.ResourceGPUShared]; got.Value() != c.want {
			t.Errorf("with rule %s the node has %s replicas, want %d", c.rule.Name, &got, c.want)
		}
		m := records.Machine{Node: now}
		if m.GPUsCordoned() != (c.want < 20) || len(now.Status.Conditions) != 1 || c.want < 20 && !strings.Contains(now.Status.Conditions[0].Message, c.rule.Name) {
			t.Errorf("with rule %s the node has the conditions %v", c.rule.Name, now.Status.Conditions)
		}
		if node.Status.Conditions[0].Status != corev1.ConditionFalse {
			t.Errorf("with rule %s the node of the cache was changed", c.rule.Name)
		}
	}
}

// So the plans of both backends are the same, and cost the same, for pods that request one replica and state no more device memory than a replica's share of a
// GPU. With more, the order in which pods come to a machine with several GPUs matters to the agent's choice of GPUs, and the scheduler makes another one.
func TestPlannerSeesNoBackendOfPodsWithOneReplica(t *testing.T) {
	t.Parallel()
	build := func(backend v1alpha1.Backend, pods []corev1.Pod) snapshot.View {
		c := snapshottest.Shared()
		for i := range c.GPUNodeClasses {
			c.GPUNodeClasses[i].Spec.Sharing.Backend = backend
		}
		claim := snapshottest.Claim("running", &c.NodePools[0], snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Initialized(c.Now))
		node := snapshottest.Node(&claim, snapshottest.TypeNamed("g4dn.xlarge"), 10)
		if backend == v1alpha1.BackendDRA {
			claim.Annotations[nodecontract.BackendAnnotation], node.Annotations[nodecontract.BackendAnnotation] = nodecontract.BackendDRA, nodecontract.BackendDRA
			delete(node.Status.Allocatable, v1alpha1.ResourceGPUShared)
			delete(node.Status.Capacity, v1alpha1.ResourceGPUShared)
			node = *facts.PublishedOf([]resourcev1.ResourceSlice{gpus("gpu.karve.sh", node.Name, 1, 10)}, nil).On(&node)
		}
		c.NodeClaims, c.Nodes, c.Pods = []karpv1.NodeClaim{claim}, []corev1.Node{node}, pods
		return snapshot.Build(c)
	}
	var pods []corev1.Pod
	for i, memory := range []string{"", "1Gi", "1500Mi", "1507Mi"} {
		for j, cpu := range []string{"100m", "2", "6"} {
			edits := []func(*corev1.Pod){snapshottest.Asking("cpu", cpu, v1alpha1.ResourceGPUShared, "1")}
			if memory != "" {
				edits = append(edits, snapshottest.GPUMemory(memory))
			}
			pods = append(pods, snapshottest.Pods(fmt.Sprintf("pod-%d-%d", i, j), 7, edits...)...)
		}
	}
	plugin, dra := build(v1alpha1.BackendDevicePlugin, pods), build(v1alpha1.BackendDRA, pods)
	if diff := cmp.Diff(plugin.Snapshot, dra.Snapshot); diff != "" {
		t.Errorf("with backend DRA the planner sees something else:\n%s", diff)
	}
	if len(plugin.Snapshot.Classes) != 12 || len(plugin.Snapshot.Nodes) != 1 || len(plugin.Snapshot.Offerings) == 0 {
		t.Errorf("the planner sees %d classes of pods, %d nodes and %d offerings", len(plugin.Snapshot.Classes), len(plugin.Snapshot.Nodes), len(plugin.Snapshot.Offerings))
	}
	// What the backends differ in does show.
	large := snapshottest.Pods("large", 1, snapshottest.Asking("cpu", "1", v1alpha1.ResourceGPUShared, "1"), snapshottest.GPUMemory("15Gi"))
	if large = append(large, snapshottest.Pods("half", 1, snapshottest.GPUMemory("7Gi"))...); cmp.Equal(build(v1alpha1.BackendDevicePlugin, large).Snapshot, build(v1alpha1.BackendDRA, large).Snapshot) {
		t.Error("a pod that states half the memory of a GPU is the same to the planner")
	}
	several := snapshottest.Pods("several", 1, snapshottest.Asking("cpu", "1", v1alpha1.ResourceGPUShared, "3"))
	if cmp.Equal(build(v1alpha1.BackendDevicePlugin, several).Snapshot, build(v1alpha1.BackendDRA, several).Snapshot) {
		t.Error("a pod that requests three replicas is the same to the planner")
	}
}

func TestGPUNodeClassWithDRANeedsOneDeviceClass(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.GPUNodeClass{Spec: v1alpha1.GPUNodeClassSpec{Sharing: v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(10)), Backend: v1alpha1.BackendDRA}}}
	device := func(name, driver, extended string) resourcev1.DeviceClass {
		return resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{
			ExtendedResourceName: &extended, Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == '" + driver + "'"}}},
		}}
	}
	ours := device("gpu.karve.sh", "gpu.karve.sh", "nvidia.com/gpu.shared")
	for name, c := range map[string]struct {
		dra          facts.DRA
		reason, says string
	}{
		"not looked at":     {dra: facts.DRA{}},
		"off":               {dra: facts.DRA{Known: true}, reason: "DRANotEnabled", says: "node.dra.enabled"},
		"no class":          {dra: facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{device("gpu.nvidia.com", "gpu.nvidia.com", "nvidia.com/gpu")}}, reason: "DeviceClassNotFound", says: "node.dra.enabled"},
		"the chart's class": {dra: facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{ours, device("gpu.nvidia.com", "gpu.nvidia.com", "nvidia.com/gpu")}}},
		"a second owner":    {dra: facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{ours, device("theirs", "gpu.nvidia.com", "nvidia.com/gpu.shared")}}, reason: "ExtendedResourceTaken", says: "DeviceClass theirs "},
		"a rule for one device": {dra: facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{ours}, TaintRules: []resourcev1.DeviceTaintRule{
			taintRule("one", &resourcev1.DeviceTaintSelector{Device: new("gpu-0")}), taintRule("theirs", &resourcev1.DeviceTaintSelector{Driver: new("gpu.nvidia.com")}), taintRule("none", nil),
		}}},
		"a rule for all": {dra: facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{ours}, TaintRules: []resourcev1.DeviceTaintRule{
			taintRule("maintenance", &resourcev1.DeviceTaintSelector{Driver: new("gpu.karve.sh")}),
		}}, reason: "DevicesTainted", says: "DeviceTaintRule maintenance "},
		"another owner alone": {dra: facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{device("theirs", "gpu.nvidia.com", "nvidia.com/gpu.shared")}}, reason: "ExtendedResourceTaken", says: "DeviceClass theirs "},
	} {
		reason, message := c.dra.Problem(class)
		if reason != c.reason || !strings.Contains(message, c.says) {
			t.Errorf("%s: %s %q, want %s with %q", name, reason, message, c.reason, c.says)
		}
	}
	// Each resource of the layouts needs a class.
	class.Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, Backend: v1alpha1.BackendDRA, MIG: &v1alpha1.MIGSharing{Layouts: []v1alpha1.MIGLayout{layout("a100", "1g.5gb"), layout("a100", "3g.20gb")}}}
	small, large := device("mig-1g.5gb.gpu.karve.sh", "gpu.karve.sh", "nvidia.com/mig-1g.5gb"), device("mig-3g.20gb.gpu.karve.sh", "gpu.karve.sh", "nvidia.com/mig-3g.20gb")
	for name, c := range map[string]struct {
		classes      []resourcev1.DeviceClass
		reason, says string
	}{
		"none":           {[]resourcev1.DeviceClass{ours}, "DeviceClassNotFound", "extendedResourceName nvidia.com/mig-1g.5gb, nvidia.com/mig-3g.20gb: set node.dra.enabled=true in the chart's values and name it in node.dra.resources"},
		"one of two":     {[]resourcev1.DeviceClass{ours, small}, "DeviceClassNotFound", "extendedResourceName nvidia.com/mig-3g.20gb:"},
		"both":           {[]resourcev1.DeviceClass{small, large}, "", ""},
		"a second owner": {[]resourcev1.DeviceClass{small, large, device("theirs", "gpu.nvidia.com", "nvidia.com/mig-3g.20gb")}, "ExtendedResourceTaken", "DeviceClass theirs has the extendedResourceName nvidia.com/mig-3g.20gb too"},
	} {
		if reason, message := (facts.DRA{Known: true, Enabled: true, Classes: c.classes}).Problem(class); reason != c.reason || !strings.Contains(message, c.says) {
			t.Errorf("layouts with %s: %s %q, want %s with %q", name, reason, message, c.reason, c.says)
		}
	}
	class.Spec.Sharing.Backend = v1alpha1.BackendDevicePlugin
	if reason, _ := (facts.DRA{Known: true}).Problem(class); reason != "" {
		t.Errorf("backend DevicePlugin: %s", reason)
	}
}
