package v1alpha1

// Labels, annotations and taints. They are API: users select by them and other tools read them.
const (
	// GPUNodeClassLabel names the GPUNodeClass of a NodeClaim and its Node. Written by the controller on NodeClaims, synced to the Node by Karpenter; read by everybody.
	GPUNodeClassLabel = Group + "/gpunodeclass"

	// ResourceAnnotation is the resource that the machine promises to expose, for instance "nvidia.com/gpu.shared".
	// Written on NodeClaims, synced to the Node by Karpenter; read by the controller and by the node agent.
	ResourceAnnotation = Group + "/resource"
	// GPUsAnnotation is the number of physical GPUs of the machine. Written and read as ResourceAnnotation.
	GPUsAnnotation = Group + "/gpus"
	// ReplicasPerGPUAnnotation is the number of replicas that each GPU of the machine is shared into. Written and read as ResourceAnnotation.
	ReplicasPerGPUAnnotation = Group + "/replicas-per-gpu"
	// PriceAnnotation is the price of the machine when it was chosen, in micro-dollars an hour. Written on NodeClaims, read by status and by people.
	PriceAnnotation = Group + "/micro-usd-per-hour"

	// GPUMemoryAnnotation states how much device memory a pod needs, for instance "4Gi". All replicas that the pod asks for are then planned for on
	// one GPU that has as much left. Nothing holds the pod to it: time-slicing shares the memory freely. Written by users on pods (templates),
	// read by the controller.
	GPUMemoryAnnotation = Group + "/gpu-memory"

	// IdleSinceAnnotation is the time (RFC 3339) at which the controller first saw the Node without pods. Written and read by the controller; removed when a pod comes.
	IdleSinceAnnotation = Group + "/idle-since"
	// DisruptingSinceAnnotation is the time (RFC 3339) at which the controller put DisruptingTaintKey on the Node. Written and read by the controller, so that a restart goes on where it stopped.
	DisruptingSinceAnnotation = Group + "/disrupting-since"

	// GPUResetAnnotation names GPUs (their UUIDs, with commas between) of the Node that were reset. Written by whoever reset them; read by the
	// node agent, which takes those off that it has put back into service.
	GPUResetAnnotation = Group + "/gpu-reset"

	// ReplicasNotReadyTaintKey is the startup taint (NoSchedule) of every machine that Karve launches. The controller takes it
	// off when the Node's allocatable holds the promised replicas.
	ReplicasNotReadyTaintKey = Group + "/replicas-not-ready"
	// DisruptingTaintKey is the taint (NoSchedule) on a Node that the controller is about to give back. Karpenter's own
	// karpenter.sh/disrupted is not used: stock Karpenter removes it from nodes that it does not disrupt itself.
	DisruptingTaintKey = Group + "/disrupting"
)

// Resource names that a GPU's replicas can have, as in NVIDIA's device plugin.
const (
	// ResourceGPU is the name of a whole GPU, and of a replica that is not renamed.
	ResourceGPU = "nvidia.com/gpu"
	// ResourceGPUShared is the name of a renamed replica (renameByDefault: true).
	ResourceGPUShared = "nvidia.com/gpu.shared"
)
