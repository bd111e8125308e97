package snapshot_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
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

func TestReplicasOfSlicesCountAsAllocatable(t *testing.T) {
	t.Parallel()
	published := snapshot.PublishedOf([]resourcev1.ResourceSlice{
		gpus("gpu.karve.sh", "four", 3, 10, 10, -10, 10), gpus("gpu.karve.sh", "four", 2, 10, 10, 10, 10), // The older slice has yet to go.
		gpus("gpu.nvidia.com", "one", 1, 10), gpus("gpu.karve.sh", "one", 1, 10), gpus("gpu.karve.sh", "sick", 1, -10),
	})
	for name, want := range map[string]int64{"four": 30, "one": 10, "sick": 0, "none": 0} {
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
	plugin := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Annotations: map[string]string{nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared}}}
	if now := published.On(plugin); now != plugin {
		t.Errorf("a node of the device plugin has %v", now.Status.Allocatable)
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
		dra          snapshot.DRA
		reason, says string
	}{
		"not looked at":       {dra: snapshot.DRA{}},
		"off":                 {dra: snapshot.DRA{Known: true}, reason: "DRANotEnabled", says: "node.dra.enabled"},
		"no class":            {dra: snapshot.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{device("gpu.nvidia.com", "gpu.nvidia.com", "nvidia.com/gpu")}}, reason: "DeviceClassNotFound", says: "node.dra.enabled"},
		"the chart's class":   {dra: snapshot.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{ours, device("gpu.nvidia.com", "gpu.nvidia.com", "nvidia.com/gpu")}}},
		"a second owner":      {dra: snapshot.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{ours, device("theirs", "gpu.nvidia.com", "nvidia.com/gpu.shared")}}, reason: "ExtendedResourceTaken", says: "DeviceClass theirs "},
		"another owner alone": {dra: snapshot.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{device("theirs", "gpu.nvidia.com", "nvidia.com/gpu.shared")}}, reason: "ExtendedResourceTaken", says: "DeviceClass theirs "},
	} {
		reason, message := c.dra.Problem(class)
		if reason != c.reason || !strings.Contains(message, c.says) {
			t.Errorf("%s: %s %q, want %s with %q", name, reason, message, c.reason, c.says)
		}
	}
	class.Spec.Sharing.Backend = v1alpha1.BackendDevicePlugin
	if reason, _ := (snapshot.DRA{Known: true}).Problem(class); reason != "" {
		t.Errorf("backend DevicePlugin: %s", reason)
	}
}
