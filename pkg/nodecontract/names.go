package nodecontract

import "strings"

// NVIDIAPrefix is the domain of NVIDIA's resources and labels.
const NVIDIAPrefix = "nvidia.com/"

// Resources that a machine exposes.
const (
	// ResourceGPU is the resource of whole GPUs, and of replicas that are not renamed.
	ResourceGPU = NVIDIAPrefix + "gpu"
	// ResourceGPUShared is the resource of replicas with NVIDIA's renameByDefault: true.
	ResourceGPUShared = ResourceGPU + ".shared"
)

// Labels of the Node with the keys of NVIDIA's GPU feature discovery. The agent or GPU feature discovery writes them, and the controller reads them.
const (
	// GPUCountLabel is the number of GPUs of the machine.
	GPUCountLabel = NVIDIAPrefix + "gpu.count"
	// GPUMemoryLabel is the device memory of each GPU, in MiB.
	GPUMemoryLabel = NVIDIAPrefix + "gpu.memory"
	// GPUReplicasLabel is the number of replicas of each GPU.
	GPUReplicasLabel = NVIDIAPrefix + "gpu.replicas"
)

// ConfigLabel is the name of the configuration for the Node. Users set it, and the agent and NVIDIA's config manager read it.
const ConfigLabel = NVIDIAPrefix + "device-plugin.config"

// ReplicasNotReadyTaint is the startup taint (NoSchedule) of every machine that Karve launches. The controller removes it when the Node has the
// promised replicas. Until then, only pods that tolerate it have been bound to the Node.
const ReplicasNotReadyTaint = domain + "/replicas-not-ready"

// CheckCommand is the argument with which karve-node checks the GPUs of its container and exits. The controller runs it on canary nodes.
const CheckCommand = "check"

// IsGPUResource reports whether a resource belongs to GPUs that Karve shares: whole GPUs, their replicas, MIG instances, or slots of device memory.
func IsGPUResource(name string) bool {
	rest, nvidia := strings.CutPrefix(name, NVIDIAPrefix)
	if !nvidia {
		return false
	}
	if rest == "gpu" || rest == "gpu.shared" || strings.HasPrefix(rest, "mig-") {
		return true
	}
	_, slot := ParseSlotResource(name)
	return slot
}
