package v1alpha1

import "karve.sh/karve/pkg/nodecontract"

// Labels, annotations and taints. They are API: users select by them and other tools read them. Those that the node agent writes or reads are in pkg/nodecontract.
const (
	// GPUNodeClassLabel names the GPUNodeClass of a NodeClaim and its Node. Written by the controller on NodeClaims, synced to the Node by Karpenter; read by everybody.
	GPUNodeClassLabel = Group + "/gpunodeclass"

	// ReplicasRaisedAnnotation is the time (RFC 3339) at which nodecontract.ReplicasPerGPUAnnotation was raised, from when on the machine has a minute to follow. Written and
	// read by the controller on NodeClaims.
	ReplicasRaisedAnnotation = Group + "/replicas-raised"
	// SlotsNextAnnotation holds a nodecontract.Slots: the slots that a Node with nodecontract.SlotsChangingTaintKey gets when no pod can come for those that are withdrawn.
	// SlotsChangingSinceAnnotation is the time (RFC 3339) of that taint. Written and read by the controller on Nodes, so that a restart goes on where it stopped.
	SlotsNextAnnotation          = Group + "/memory-slots-next"
	SlotsChangingSinceAnnotation = Group + "/slots-changing-since"
	// PriceAnnotation is the price of the machine when it was chosen, in micro-dollars an hour. Written on NodeClaims, read by status and by people.
	PriceAnnotation = Group + "/micro-usd-per-hour"

	// PlannedPodsAnnotation says what the machine was launched for: how many pods of each shape, by a hash of what they ask for. Written and read by the controller on
	// NodeClaims, so that the next plan has the same pods there.
	PlannedPodsAnnotation = Group + "/planned-pods"
	// PlanAnnotation names the plan that the machine was launched by, and the entry of its PlannedLaunchesAnnotation. That holds all launches of a plan which could not be
	// made at once, as JSON, and is on the first NodeClaim of the plan. Written and read by the controller, so that a restart goes on with the same plan.
	PlanAnnotation            = Group + "/plan"
	PlannedLaunchesAnnotation = Group + "/planned-launches"

	// GPUMemoryAnnotation states how much device memory a pod needs, for instance "4Gi". All replicas that the pod asks for are then planned for on
	// one GPU that has as much left. Nothing holds the pod to it with time-slicing, which shares the memory freely. With MPS, no process of the pod can
	// allocate more. Written by users on pods (templates), read by the controller, and by the agent where GPUs are shared with MPS.
	GPUMemoryAnnotation = nodecontract.GPUMemoryAnnotation

	// IdleSinceAnnotation is the time (RFC 3339) at which the controller first saw the Node without pods. Written and read by the controller; removed when a pod comes.
	IdleSinceAnnotation = Group + "/idle-since"
	// DisruptingSinceAnnotation is the time (RFC 3339) at which the controller put DisruptingTaintKey on the Node. Written and read by the controller, so that a restart goes on where it stopped.
	DisruptingSinceAnnotation = Group + "/disrupting-since"

	// ReplacingAnnotation says that the machine is about to go and why, in the words of a reason, such as NodePoolDrifted or Expiring: its pods get a new
	// place first. Written by the controller on NodeClaims; read by whoever plans. Removed when the machine stays after all.
	ReplacingAnnotation = Group + "/replacing"
	// ReplacingSinceAnnotation is the time (RFC 3339) at which ReplacingAnnotation was written. Written and read by the controller, so that a restart goes on where it stopped.
	ReplacingSinceAnnotation = Group + "/replacing-since"
	// ReplacementFailuresAnnotation counts how often in a row the new place of the machine's pods did not come, and ReplaceAfterAnnotation is the time (RFC 3339)
	// before which it is not tried again. Written and read by the controller on NodeClaims; people may remove both.
	ReplacementFailuresAnnotation = Group + "/replacement-failures"
	ReplaceAfterAnnotation        = Group + "/replace-after"
	// ReplacesAnnotation names the Nodes (with commas between) from which the pods come that the machine was launched for. Written on NodeClaims,
	// synced to the Node by Karpenter; read by people.
	ReplacesAnnotation = Group + "/replaces"

	// ReplicasShortSinceAnnotation is the time (RFC 3339) at which the controller first saw the Node expose fewer replicas than it promised, after it had exposed them.
	// Written and read by the controller on Nodes; removed when they are back.
	ReplicasShortSinceAnnotation = Group + "/replicas-short-since"
	// ReplicasReadySinceAnnotation is the time (RFC 3339) at which the controller took ReplicasNotReadyTaintKey off the Node, from when on the machine has a limited
	// time to become initialized. Written and read by the controller.
	ReplicasReadySinceAnnotation = Group + "/replicas-ready-since"
	// RepairsAnnotation counts how many machines in a row were unhealthy soon after they were launched, before this one was launched for their pods: it is not replaced
	// as soon as they were. Written by the controller on NodeClaims; read by it, and people may remove it.
	RepairsAnnotation = Group + "/repairs"

	// EvictWhenUnusedAnnotation lets a pod be evicted that has not used the GPU for as long as it says, for instance "2h": 10m to 720h. Written by users on
	// pods (templates), read by the controller.
	EvictWhenUnusedAnnotation = Group + "/evict-when-unused"

	// SchedulingRetriedLabel is the time, in seconds since 1970, at which the controller last made the scheduler try pods again that have had a place on a Node with
	// backend DRA. Only a change of a label does that. Written by the controller on such Nodes; read by nobody.
	SchedulingRetriedLabel = Group + "/scheduling-retried"

	// CanaryLabel names the GPUImageRollout of a NodeClaim, EC2NodeClass or pod of a canary node, which tries a machine image. Such a NodeClaim holds no pods of
	// users and is not planned with; it counts against its NodePool's limits. Written by the controller; read by everybody.
	CanaryLabel = Group + "/canary-of"
	// ImageRolloutAnnotation names the GPUImageRollout that has pinned an EC2NodeClass. Written by the controller when it takes the class over; read by it, and
	// by people: without it the class is taken over again with the image that it then has.
	ImageRolloutAnnotation = Group + "/image-rollout"
	// FormerSelectorTermsAnnotation holds spec.amiSelectorTerms of an EC2NodeClass, as JSON, as they were before it was taken over. Written by the controller, read
	// by people.
	FormerSelectorTermsAnnotation = Group + "/former-ami-selector-terms"

	// CanaryTaintKey is the taint (NoSchedule) that keeps pods off a canary node. DaemonSets that have to run there, such as the one that exposes the replicas, tolerate it.
	CanaryTaintKey = Group + "/canary"
	// ReplicasNotReadyTaintKey is the startup taint (NoSchedule) of every machine that Karve launches. The controller takes it
	// off when the Node's allocatable holds the promised replicas.
	ReplicasNotReadyTaintKey = nodecontract.ReplicasNotReadyTaint
	// SurplusTaintKey is the taint (PreferNoSchedule) on a Node that the cheapest layout has no use for: new pods go to others where they can, so that it runs
	// empty by itself. Written by the controller, and taken off when the layout changes.
	SurplusTaintKey = Group + "/surplus"
	// DisruptingTaintKey is the taint (NoSchedule) on a Node that the controller is about to give back. Karpenter's own
	// karpenter.sh/disrupted is not used: stock Karpenter removes it from nodes that it does not disrupt itself.
	DisruptingTaintKey = Group + "/disrupting"
)

// Names of resources that pods ask for, as in NVIDIA's device plugin.
const (
	// ResourceGPU is a whole GPU, and a replica that is not renamed.
	ResourceGPU = nodecontract.ResourceGPU
	// ResourceGPUShared is a renamed replica.
	ResourceGPUShared = nodecontract.ResourceGPUShared
)
