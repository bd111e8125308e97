// Package nvidiadra makes ResourceSlices in the form in which NVIDIA's DRA driver publishes them, after the source of its version 0.5
// (https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, commit 95932046): deviceinfo.go, consumable_shares.go and driver.go in cmd/gpu-kubelet-plugin.
package nvidiadra

import (
	"fmt"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/gpu"
)

// Driver is the name of the driver and of its DeviceClass for whole GPUs.
const Driver = "gpu.nvidia.com"

// DeviceClass returns one of the DeviceClasses of the driver's chart: of the type gpu, mig or vfio.
func DeviceClass(kind string) *resourcev1.DeviceClass {
	name := map[string]string{"gpu": Driver, "mig": "mig.nvidia.com", "vfio": "vfio.gpu.nvidia.com"}[kind]
	c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
		Expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '" + kind + "'",
	}}}}}
	if kind == "gpu" {
		c.Spec.ExtendedResourceName = new("nvidia.com/gpu")
	}
	return c
}

// Slice returns the slice of a node. shares is the value consumableShares of the driver's chart: "disabled", "memory", "unlimited", or a number. The driver publishes GPUs in
// no order.
func Slice(node, shares string, gpus ...gpu.Device) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-gpu.nvidia.com-x7k2p"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: Driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range gpus {
		s.Spec.Devices = append(s.Spec.Devices, device(&gpus[i], shares))
	}
	return s
}

func device(g *gpu.Device, shares string) resourcev1.Device {
	d := resourcev1.Device{
		Name: "gpu-" + strconv.Itoa(g.Minor),
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"cudaComputeCapability":           {VersionValue: new(fmt.Sprintf("%d.%d.0", g.ComputeMajor, g.ComputeMinor))},
			"driverVersion":                   {VersionValue: new("580.126.20")},
			"cudaDriverVersion":               {VersionValue: new("13.0.0")},
			"resource.kubernetes.io/numaNode": {IntValue: new(int64(0))},
		},
		// NVML's amount, which is no whole number of MiB.
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: *resource.NewQuantity(g.MemoryMiB<<20+4096, resource.BinarySI)}},
	}
	for name, value := range map[resourcev1.QualifiedName]string{
		"type": "gpu", "uuid": g.UUID, "productName": g.Product, "brand": "Nvidia", "architecture": architectures[[2]int{g.ComputeMajor, g.ComputeMinor}], "addressingMode": "HMM",
		"resource.kubernetes.io/pciBusID": fmt.Sprintf("0000:%02x:00.0", g.Minor), "resource.kubernetes.io/pcieRoot": g.PCIeRoot,
	} {
		if value != "" {
			d.Attributes[name] = resourcev1.DeviceAttribute{StringValue: &value}
		}
	}
	if shares != "disabled" {
		share(&d, shares, g.MemoryMiB<<20)
	}
	return d
}

// share makes a device one that several claims can have, as the driver's applyConsumableShares does.
func share(d *resourcev1.Device, shares string, memory int64) {
	quantity := func(text string) *resource.Quantity { return new(resource.MustParse(text)) }
	whole := *resource.NewQuantity(memory, resource.BinarySI)
	policy := &resourcev1.CapacityRequestPolicy{Default: quantity("0"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: quantity("0"), Max: &whole, Step: quantity("1Mi")}}
	if shares == "memory" {
		policy.Default, policy.ValidRange.Min = &whole, quantity("1Mi")
	}
	d.AllowMultipleAllocations = new(true)
	d.Capacity["memory"] = resourcev1.DeviceCapacity{Value: whole, RequestPolicy: policy}
	if n, err := strconv.Atoi(shares); err == nil {
		all := *resource.NewQuantity(int64(n), resource.DecimalSI)
		d.Capacity["shares"] = resourcev1.DeviceCapacity{Value: all, RequestPolicy: &resourcev1.CapacityRequestPolicy{
			Default: quantity("1"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: quantity("1"), Max: &all, Step: quantity("1")},
		}}
	}
}

// architectures has go-nvlib's names by compute capability.
var architectures = map[[2]int]string{{7, 0}: "Volta", {7, 5}: "Turing", {8, 0}: "Ampere", {8, 6}: "Ampere", {8, 9}: "Ada Lovelace", {9, 0}: "Hopper", {10, 0}: "Blackwell", {12, 0}: "Blackwell"}
