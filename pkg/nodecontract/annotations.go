package nodecontract

// domain is the API group of Karve, which its annotations begin with.
const domain = "karve.sh"

// The promise: what a machine was launched to expose. Written by the controller on NodeClaims, synced to the Node by Karpenter; read by the controller and the agent.
const (
	// ResourceAnnotation is the resource that the machine promises to expose, for instance "nvidia.com/gpu.shared".
	ResourceAnnotation = domain + "/resource"
	// GPUsAnnotation is the number of physical GPUs of the machine. The agent does not read it: it counts them.
	GPUsAnnotation = domain + "/gpus"
	// ReplicasPerGPUAnnotation is the number of replicas that each GPU of the machine is shared into.
	ReplicasPerGPUAnnotation = domain + "/replicas-per-gpu"
)

// UnusedSinceAnnotation is an UnusedReport. Written by the agent on its Node; read by the controller, and by the agent when it starts.
const UnusedSinceAnnotation = domain + "/unused-since"

// GPUResetAnnotation names GPUs (their UUIDs, with commas between) of the Node that were reset. Written by whoever reset them; read by the agent, which removes each
// UUID once it has dealt with it.
const GPUResetAnnotation = domain + "/gpu-reset"
