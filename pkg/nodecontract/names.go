package nodecontract

// NVIDIAPrefix is the domain of NVIDIA's resources and labels.
const NVIDIAPrefix = "nvidia.com/"

// Resources that a machine exposes.
const (
	// ResourceGPU is a whole GPU, and a replica that is not renamed.
	ResourceGPU = NVIDIAPrefix + "gpu"
	// ResourceGPUShared is a replica with NVIDIA's renameByDefault: true.
	ResourceGPUShared = ResourceGPU + ".shared"
)

// Labels of the Node, as NVIDIA's GPU feature discovery writes them. Written by the agent, or by NVIDIA's own; read by the controller.
const (
	// GPUCountLabel is the number of GPUs of the machine.
	GPUCountLabel = NVIDIAPrefix + "gpu.count"
	// GPUMemoryLabel is the device memory of each of them, in MiB.
	GPUMemoryLabel = NVIDIAPrefix + "gpu.memory"
)

// ConfigLabel names the configuration that is for the Node. Written by people; read by the agent and by NVIDIA's config manager.
const ConfigLabel = NVIDIAPrefix + "device-plugin.config"

// CheckCommand is the argument with which karve-node looks at the GPUs that its container was given, and ends. The controller runs it on canary nodes.
const CheckCommand = "check"
