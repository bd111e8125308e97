package claims

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// nvidiaT4 is a machine with T4s that NVIDIA's driver publishes with a number of shares, or whole if it is 1.
func nvidiaT4(count, shares int64) Devices {
	return Devices{Kind: Kind{Driver: nodecontract.NVIDIADRADriver, Whole: shares == 1, Model: "t4", Resource: v1alpha1.ResourceGPU}, Count: count, Replicas: shares, MemoryMiB: 15360}
}

// nvidiaSeen returns a pod with a claim for a GPU of NVIDIA's driver as decisions see it.
func nvidiaSeen(edit func(*resourcev1.DeviceClaim, *corev1.Pod)) *corev1.Pod {
	claim := resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: nodecontract.NVIDIADRADriver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
	}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "pod"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main"}}, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("mine")}},
	}}
	if edit != nil {
		edit(&claim.Spec.Devices, pod)
	}
	configured := NVIDIADeviceClass()
	configured.Name = "configured"
	configured.Spec.Config = []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: opaque(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}`)}}
	instances := deviceClass("mig.nvidia.com", nodecontract.NVIDIADRADriver)
	instances.Spec.Selectors = append(instances.Spec.Selectors, selector(`device.attributes['gpu.nvidia.com'].type == 'mig'`)...)
	return New([]resourcev1.ResourceClaim{claim}, nil, []resourcev1.DeviceClass{NVIDIADeviceClass(), configured, instances, deviceClass("gpu", nodecontract.DRADriver)}, []*corev1.Pod{pod}).On(pod)
}

func opaque(parameters string) resourcev1.DeviceConfiguration {
	return resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: nodecontract.NVIDIADRADriver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}
}

// asks makes the request ask for capacities.
func asks(capacities map[resourcev1.QualifiedName]string) func(*resourcev1.DeviceClaim, *corev1.Pod) {
	return func(c *resourcev1.DeviceClaim, _ *corev1.Pod) {
		requests := map[resourcev1.QualifiedName]resource.Quantity{}
		for name, value := range capacities {
			requests[name] = resource.MustParse(value)
		}
		c.Requests[0].Exactly.Capacity = &resourcev1.CapacityRequirements{Requests: requests}
	}
}

func selects(expression string) func(*resourcev1.DeviceClaim, *corev1.Pod) {
	return func(c *resourcev1.DeviceClaim, _ *corev1.Pod) {
		c.Requests[0].Exactly.Selectors = selector(expression)
	}
}

func TestClaimForNVIDIAsDriverIsReadAsSharesAndMemory(t *testing.T) {
	t.Parallel()
	pod := nvidiaSeen(asks(map[resourcev1.QualifiedName]string{"shares": "2500m", "memory": "3G"}))
	ask := Of(pod)
	if ask == nil || ask.Refusal != "" || ask.Driver != nodecontract.NVIDIADRADriver {
		t.Fatalf("the claim asks %+v", ask)
	}
	if diff := cmp.Diff([]Set{{{1, 3, 2862 << 20}}}, ask.Sets); diff != "" {
		t.Error(diff)
	}
	last := pod.Spec.Containers[len(pod.Spec.Containers)-1].Resources.Requests[v1alpha1.ResourceGPU]
	if len(pod.Spec.Containers) != 2 || last.Value() != 3 {
		t.Errorf("the pod requests %s", last.String())
	}
	plain := Of(nvidiaSeen(nil))
	for name, c := range map[string]struct {
		ask     *Ask
		devices Devices
		want    string
	}{
		"shares of a GPU with shares":  {ask, nvidiaT4(1, 10), ""},
		"shares of a whole GPU":        {ask, nvidiaT4(1, 1), "requests the capacity shares"},
		"shares of GPUs of the agents": {ask, t4(1), "the claim is for GPUs of the driver gpu.nvidia.com, and those of machines with t4 are of the driver gpu.karve.sh"},
		"a whole GPU":                  {plain, nvidiaT4(4, 1), ""},
		"one share":                    {plain, nvidiaT4(4, 10), ""},
		"a claim for the agents' GPUs": {Of(seen(nil)), nvidiaT4(1, 10), "the claim is for GPUs of the driver gpu.karve.sh"},
		"memory of a whole GPU":        {Of(nvidiaSeen(asks(map[resourcev1.QualifiedName]string{"memory": "15Gi"}))), nvidiaT4(4, 1), ""},
		"more memory than a GPU has":   {Of(nvidiaSeen(asks(map[resourcev1.QualifiedName]string{"memory": "16Gi"}))), nvidiaT4(4, 1), "more of each GPU"},
		"more than half of several":    {Of(nvidiaSeen(asks(map[resourcev1.QualifiedName]string{"memory": "9Gi"}))), nvidiaT4(4, 10), "more than half of a GPU"},
		"more GPUs than a machine has": {Of(nvidiaSeen(func(c *resourcev1.DeviceClaim, _ *corev1.Pod) { c.Requests[0].Exactly.Count = 2 })), nvidiaT4(1, 1), "asks for 2 GPUs"},
		"a type of the class mig": {Of(nvidiaSeen(func(c *resourcev1.DeviceClaim, _ *corev1.Pod) {
			c.Requests[0].Exactly.DeviceClassName = "mig.nvidia.com"
		})), nvidiaT4(1, 1), "does not select GPUs"},
		"NVIDIA's architecture":         {Of(nvidiaSeen(selects(`device.attributes["gpu.nvidia.com"].architecture == "Turing"`))), nvidiaT4(1, 1), ""},
		"the agents' architecture":      {Of(nvidiaSeen(selects(`device.attributes["gpu.nvidia.com"].architecture == "turing"`))), nvidiaT4(1, 1), "does not select"},
		"the compute capability":        {Of(nvidiaSeen(selects(`device.attributes["gpu.nvidia.com"].cudaComputeCapability.isGreaterThan(semver("7.0.0"))`))), nvidiaT4(1, 10), ""},
		"shared devices":                {Of(nvidiaSeen(selects(`device.allowMultipleAllocations`))), nvidiaT4(1, 10), ""},
		"shared devices, of whole GPUs": {Of(nvidiaSeen(selects(`device.allowMultipleAllocations`))), nvidiaT4(1, 1), "does not select"},
		"a profile, of whole GPUs":      {Of(nvidiaSeen(selects(`device.attributes["gpu.nvidia.com"].profile == "1g.5gb"`))), nvidiaT4(1, 1), "cannot be evaluated"},
	} {
		if c.ask.Refusal != "" {
			t.Errorf("%s: refused: %s", name, c.ask.Refusal)
		}
		if why := c.ask.Fits(c.devices); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s: %q, want %q", name, why, c.want)
		}
	}
	for name, want := range map[string]string{"turing": "Turing", "ada-lovelace": "Ada Lovelace"} {
		if got := nvidiaArchitecture(name); got != want {
			t.Errorf("NVIDIA's driver calls %s %q, and publishes %q", name, got, want)
		}
	}
}

func TestConfigOfClaimForNVIDIAsDriver(t *testing.T) {
	t.Parallel()
	config := func(parameters string, requests ...string) func(*resourcev1.DeviceClaim, *corev1.Pod) {
		return func(c *resourcev1.DeviceClaim, _ *corev1.Pod) {
			c.Config = []resourcev1.DeviceClaimConfiguration{{Requests: requests, DeviceConfiguration: opaque(parameters)}}
		}
	}
	const gpuConfig = `"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"`
	for name, c := range map[string]struct {
		edit func(*resourcev1.DeviceClaim, *corev1.Pod)
		// refusal is why nothing is launched at all, and shares and whole are why GPUs with shares and whole GPUs do not fit.
		refusal, shares, whole string
	}{
		"time-slicing":             {config(`{`+gpuConfig+`, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`, "gpu"), "", "", ""},
		"no sharing":               {config(`{` + gpuConfig + `}`), "", "", ""},
		"MPS":                      {config(`{` + gpuConfig + `, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}}`), "", "has a config with MPS", ""},
		"an unknown strategy":      {config(`{` + gpuConfig + `, "sharing": {"strategy": "Fractions"}}`), `ResourceClaim default/mine has a config of the driver gpu.nvidia.com with the sharing strategy "Fractions"`, "", ""},
		"a newer version":          {config(`{"apiVersion": "resource.nvidia.com/v9", "kind": "GpuConfig"}`), "resource.nvidia.com/v9 GpuConfig, which Karve does not know", "", ""},
		"of MIG instances":         {config(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}`, "gpu"), "MigDeviceConfig, which the driver refuses for whole GPUs", "", ""},
		"of MIG instances, if any": {config(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}`), "", "", ""},
		"no object":                {config(`7`), "cannot be read", "", ""},
		"too long":                 {config(`{` + gpuConfig + `, "x": "` + strings.Repeat("x", configBytes) + `"}`), "ResourceClaim default/mine has a config of the driver gpu.nvidia.com with more than 1024 bytes", "", ""},
		"too many": {func(c *resourcev1.DeviceClaim, _ *corev1.Pod) {
			c.Config = slices.Repeat([]resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: opaque(`{` + gpuConfig + `}`)}}, maxConfigs+1)
		}, "more than 8 configs", "", ""},
		"of the class": {func(c *resourcev1.DeviceClaim, _ *corev1.Pod) { c.Requests[0].Exactly.DeviceClassName = "configured" }, "has the DeviceClass configured with a config of the driver gpu.nvidia.com with VfioDeviceConfig", "", ""},
		"of another driver": {func(c *resourcev1.DeviceClaim, _ *corev1.Pod) {
			c.Config = []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "example.com"}}}}
		}, "", "", ""},
		"no opaque config, for once": {func(c *resourcev1.DeviceClaim, _ *corev1.Pod) { c.Config = []resourcev1.DeviceClaimConfiguration{{}} }, "", "", ""},
	} {
		ask := Of(nvidiaSeen(c.edit))
		if (ask.Refusal == "") != (c.refusal == "") || !strings.Contains(ask.Refusal, c.refusal) {
			t.Errorf("%s: refused with %q, want %q", name, ask.Refusal, c.refusal)
			continue
		}
		for devices, want := range map[Devices]string{nvidiaT4(1, 10): c.shares, nvidiaT4(1, 1): c.whole} {
			if why := ask.Fits(devices); c.refusal == "" && ((why == "") != (want == "") || !strings.Contains(why, want)) {
				t.Errorf("%s: %d shares: %q, want %q", name, devices.Replicas, why, want)
			}
		}
	}
}

func TestClaimsForNVIDIAsDriverThatCannotBePlannedForAreRefused(t *testing.T) {
	t.Parallel()
	constraint := func(c resourcev1.DeviceConstraint) func(*resourcev1.DeviceClaim, *corev1.Pod) {
		return func(claim *resourcev1.DeviceClaim, _ *corev1.Pod) {
			claim.Constraints = []resourcev1.DeviceConstraint{c}
		}
	}
	attribute := func(name string) *resourcev1.FullyQualifiedName { return new(resourcev1.FullyQualifiedName(name)) }
	for want, edit := range map[string]func(*resourcev1.DeviceClaim, *corev1.Pod){
		`requests the capacity memory, and "8000" is 8,000 bytes`:                          asks(map[resourcev1.QualifiedName]string{"memory": "8000"}),
		"requests the capacity replicas, which the GPUs do not have: use shares or memory": asks(map[resourcev1.QualifiedName]string{"replicas": "2"}),
		"reads productName, which is known only when there is a node":                      selects(`device.attributes["gpu.nvidia.com"].productName == "Tesla T4"`),
		"reads brand":        selects(`device.attributes["gpu.nvidia.com"].brand == "Nvidia"`),
		"reads pciBusID":     selects(`device.attributes["resource.kubernetes.io"].pciBusID == "0000:01:00.0"`),
		"reads the capacity": selects(`device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("10Gi"))`),
		"has a constraint":   constraint(resourcev1.DeviceConstraint{MatchAttribute: attribute("resource.kubernetes.io/pcieRoot")}),
		"distinctAttribute with gpu.nvidia.com/uuid": constraint(resourcev1.DeviceConstraint{DistinctAttribute: attribute("gpu.karve.sh/uuid")}),
		"has a request for the DeviceClass gpu, and the pod has one for GPUs of the driver gpu.nvidia.com": func(c *resourcev1.DeviceClaim, _ *corev1.Pod) {
			c.Requests = append(c.Requests, resourcev1.DeviceRequest{Name: "ours", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}})
		},
		"requests a GPU resource too": func(_ *resourcev1.DeviceClaim, pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{v1alpha1.ResourceGPU: resource.MustParse("1")}
		},
	} {
		if ask := Of(nvidiaSeen(edit)); !strings.Contains(ask.Refusal, want) {
			t.Errorf("refused with %q, want %q", ask.Refusal, want)
		}
	}
	// Its containers see all GPUs of several claims, so that a machine can have several.
	two := Of(nvidiaSeen(func(c *resourcev1.DeviceClaim, pod *corev1.Pod) {
		c.Requests = append(c.Requests, *c.Requests[0].DeepCopy())
		c.Requests[1].Name = "second"
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu", Request: "gpu"}, {Name: "gpu", Request: "second"}}
	}))
	if why := two.Fits(nvidiaT4(4, 1)); two.Refusal != "" || why != "" {
		t.Errorf("a container with two requests: %q, %q", two.Refusal, why)
	}
}

func TestAllocatedClaimOfNVIDIAsDriverHoldsWhatWasAllocated(t *testing.T) {
	t.Parallel()
	claim := &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Driver: nodecontract.NVIDIADRADriver, Device: "gpu-0"},
		{Driver: "example.com", Device: "nic"},
		{Driver: nodecontract.NVIDIADRADriver, Device: "gpu-1", ConsumedCapacity: map[resourcev1.QualifiedName]resource.Quantity{"shares": resource.MustParse("3"), "memory": resource.MustParse("1Gi")}},
	}}}}}
	got := &Ask{Sets: []Set{allocatedSet([]*podClaim{{claim: claim}})}}
	got.sort()
	if diff := cmp.Diff([]Set{{{1, 1, 0}, {1, 3, 1 << 30}}}, got.Sets); diff != "" {
		t.Error(diff)
	}
}

func TestDevicesOfDriversArePublishedForResources(t *testing.T) {
	t.Parallel()
	device := func(kind string, shared bool, capacities ...string) *resourcev1.Device {
		d := &resourcev1.Device{Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": stringAttribute(kind)}, Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{}}
		if shared {
			d.AllowMultipleAllocations = new(true)
		}
		for i := 0; i < len(capacities); i += 2 {
			d.Capacity[resourcev1.QualifiedName(capacities[i])] = resourcev1.DeviceCapacity{Value: resource.MustParse(capacities[i+1])}
		}
		return d
	}
	for name, c := range map[string]struct {
		driver   string
		device   *resourcev1.Device
		resource string
		whole    bool
		replicas int64
	}{
		"a whole GPU":               {nodecontract.NVIDIADRADriver, device("gpu", false, "memory", "15Gi"), "nvidia.com/gpu", true, 1},
		"shares":                    {nodecontract.NVIDIADRADriver, device("gpu", true, "memory", "15Gi", "shares", "4"), "nvidia.com/gpu", false, 4},
		"shared by memory alone":    {nodecontract.NVIDIADRADriver, device("gpu", true, "memory", "15Gi"), "nvidia.com/gpu", false, 0},
		"an instance":               {nodecontract.NVIDIADRADriver, device("mig", false, "memory", "4Gi"), "nvidia.com/gpu", false, 0},
		"for virtual machines":      {nodecontract.NVIDIADRADriver, device("vfio", false), "nvidia.com/gpu", false, 0},
		"no type":                   {nodecontract.NVIDIADRADriver, &resourcev1.Device{}, "nvidia.com/gpu", false, 0},
		"of the agents":             {nodecontract.DRADriver, device("", true, "replicas", "10"), "nvidia.com/gpu.shared", false, 10},
		"of a driver without entry": {"example.com", device("gpu", true, "replicas", "10"), "", false, 0},
		"of no driver":              {"", device("gpu", true, "replicas", "10"), "", false, 0},
	} {
		if res, whole, replicas := Publishes(c.driver, c.device); res != c.resource || whole != c.whole || replicas != c.replicas {
			t.Errorf("%s: %q %t %d, want %q %t %d", name, res, whole, replicas, c.resource, c.whole, c.replicas)
		}
	}
}
