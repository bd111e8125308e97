package nodecontract

import (
	"strconv"
	"strings"
)

// BackendAnnotation is part of the promise of a machine: BackendDRA if its agent serves replicas as a DRA driver, and BackendNVIDIADRA if NVIDIA's
// driver does. Without it, the agent is a device plugin. The controller writes it to NodeClaims, and Karpenter syncs it to the Node. The controller and
// the agent read it.
const BackendAnnotation = domain + "/backend"

// Values of BackendAnnotation for Dynamic Resource Allocation.
const (
	// BackendDRA means that the agent is a DRA driver.
	BackendDRA = "DRA"
	// BackendNVIDIADRA means that NVIDIA's DRA driver serves the GPUs, and the agent does not.
	BackendNVIDIADRA = "NVIDIADRA"
)

// Names of DRA drivers in ResourceSlices, ResourceClaims and DeviceClasses.
const (
	// DRADriver is the agent's driver.
	DRADriver = "gpu." + domain
	// NVIDIADRADriver is the driver of https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu.
	NVIDIADRADriver = "gpu.nvidia.com"
)

// DriverOf returns the DRA driver that serves the GPUs of machines with a backend. It is "" if they have a device plugin, or an unknown backend.
func DriverOf(backend string) string {
	switch backend {
	case BackendDRA:
		return DRADriver
	case BackendNVIDIADRA:
		return NVIDIADRADriver
	default:
		return ""
	}
}

// Capacities of a device in the agent's ResourceSlices, of which claims consume parts.
const (
	// DRAReplicas is the number of replicas of a GPU or MIG instance. A request consumes one by default.
	DRAReplicas = "replicas"
	// DRAMemory is the device memory of a GPU or MIG instance. A request consumes none by default.
	DRAMemory = "memory"
)

// Keys of taints of devices in the agent's ResourceSlices. A device with one of them accepts no new pods.
const (
	// DRAUnhealthyTaint is on a GPU that is out of service.
	DRAUnhealthyTaint = DRADriver + "/out-of-service"
	// DRACordonedTaint is on a GPU that GPUCordonAnnotation names.
	DRACordonedTaint = DRADriver + "/cordoned"
)

// DeviceClass returns the name that the chart gives to the DeviceClass of an extended resource, and the CEL expression by which the class selects the
// devices. Slices of agents that publish no DRAResource are for nvidia.com/gpu.shared.
func DeviceClass(resource string) (name, selector string) {
	name = DRADriver
	if resource != ResourceGPUShared {
		name = strings.TrimPrefix(resource, NVIDIAPrefix) + "." + DRADriver
	}
	return name, "device.driver == '" + DRADriver + "' && device.attributes['" + DRADriver + "'].?" + DRAResource + ".orValue('" + ResourceGPUShared + "') == '" + resource + "'"
}

// Attributes of a device in the agent's ResourceSlices that are the same for all devices of a machine, so that they are known before there is a node.
const (
	// DRAResource is the extended resource that serves the device, for example "nvidia.com/gpu.shared" or "nvidia.com/mig-1g.5gb".
	DRAResource = "resource"
	// DRAProfile is the profile of a MIG instance, for example "1g.5gb". Whole GPUs have none.
	DRAProfile = "profile"
	// DRAArchitecture is the architecture as a string, for example "turing".
	DRAArchitecture = "architecture"
	// DRAComputeCapability is the compute capability as a version, for example 7.5.0.
	DRAComputeCapability = "cudaComputeCapability"
)

// Attributes that only the node knows.
const (
	DRAUUID = "uuid"
	// DRAParentUUID is the UUID of the GPU of a MIG instance.
	DRAParentUUID        = "parentUUID"
	DRAProductName       = "productName"
	DRAIndex             = "index"
	DRADriverVersion     = "driverVersion"
	DRACUDADriverVersion = "cudaDriverVersion"
	DRAPCIeRoot          = "resource.kubernetes.io/pcieRoot"
)

// ComputeCapability returns the value of DRAComputeCapability.
func ComputeCapability(major, minor int) string {
	return strconv.Itoa(major) + "." + strconv.Itoa(minor) + ".0"
}

// Architecture returns GPU feature discovery's name of the architecture of a GPU with a compute capability.
func Architecture(major, minor int) string {
	switch {
	case major == 1:
		return "tesla"
	case major == 2:
		return "fermi"
	case major == 3:
		return "kepler"
	case major == 5:
		return "maxwell"
	case major == 6:
		return "pascal"
	case major == 7 && minor < 5:
		return "volta"
	case major == 7:
		return "turing"
	case major == 8 && minor < 9:
		return "ampere"
	case major == 8:
		return "ada-lovelace"
	case major == 9:
		return "hopper"
	case major == 10, major == 12:
		return "blackwell"
	case major == 13:
		return "rubin"
	default:
		return "undefined"
	}
}
