package nodecontract

// domain is Karve's API group and the prefix of its annotations.
const domain = "karve.sh"

// These annotations hold the promise of a machine, which is what it was launched to expose. The controller writes them to NodeClaims, and Karpenter syncs
// them to the Node. The controller and the agent read them.
const (
	// ResourceAnnotation is the name of the resource that the machine promises to expose, for example "nvidia.com/gpu.shared".
	ResourceAnnotation = domain + "/resource"
	// GPUsAnnotation is the number of physical GPUs of the machine. The agent does not read it, because it counts the GPUs.
	GPUsAnnotation = domain + "/gpus"
	// ReplicasPerGPUAnnotation is the number of replicas of each GPU of the machine.
	ReplicasPerGPUAnnotation = domain + "/replicas-per-gpu"
)

// UnusedSinceAnnotation holds an UnusedReport. The agent writes it to its Node, and reads it when it starts. The controller reads it.
const UnusedSinceAnnotation = domain + "/unused-since"

// GPUResetAnnotation lists the UUIDs of GPUs of the Node that were reset, separated by commas. It is written by whoever reset them. The agent reads it,
// and removes each UUID that it has handled.
const GPUResetAnnotation = domain + "/gpu-reset"

// GPUCordonAnnotation lists GPUs of the Node that accept no new pods, by index or UUID, separated by commas. Users write it, and the agent reads it.
const GPUCordonAnnotation = domain + "/gpu-cordon"

// GPUMemoryAnnotation is how much device memory a pod needs, for example "4Gi". Users write it on pods. The controller reads it, and so does the agent
// on nodes whose GPUs are shared with MPS.
const GPUMemoryAnnotation = domain + "/gpu-memory"

// GPUThreadsAnnotation is the percentage of a GPU's threads that each process of a pod may use at the same time, 1 to 100, if it is less than the share
// of a replica. Users write it on pods, and it has an effect on nodes whose GPUs are shared with MPS. The controller reads it to report invalid values.
const GPUThreadsAnnotation = domain + "/gpu-threads"

// HoldersAnnotation holds a HoldersReport. The agent writes it to its Node, and kubectl karve reads it. The controller reads from it which slots of
// memory are in use.
const HoldersAnnotation = domain + "/gpu-holders"
