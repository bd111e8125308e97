package v1alpha1

import "karve.sh/karve/pkg/nodecontract"

// Labels, annotations and taints. They are API: users select by them and other tools read them. pkg/nodecontract has those that the node agent writes
// or reads.
const (
	// GPUNodeClassLabel is the name of the GPUNodeClass of a NodeClaim and its Node. Written by the controller on NodeClaims, synced to the Node by
	// Karpenter; read by everybody.
	GPUNodeClassLabel = Group + "/gpunodeclass"

	// ReplicasRaisedAnnotation is the time (RFC 3339) at which nodecontract.ReplicasPerGPUAnnotation was raised. The node then has one minute to expose
	// the new replicas. Written and read by the controller on NodeClaims.
	ReplicasRaisedAnnotation = Group + "/replicas-raised"
	// SlotsNextAnnotation holds a nodecontract.Slots: the slots that a Node with nodecontract.SlotsChangingTaintKey gets once no new pod can be bound to
	// the slots that are withdrawn. SlotsChangingSinceAnnotation is the time (RFC 3339) of that taint. Written and read by the controller on Nodes, so
	// that a restarted controller continues where it stopped.
	SlotsNextAnnotation          = Group + "/memory-slots-next"
	SlotsChangingSinceAnnotation = Group + "/slots-changing-since"
	// PriceAnnotation is the hourly price of the node when it was chosen, in micro-dollars. Written on NodeClaims, read by status and by people.
	PriceAnnotation = Group + "/micro-usd-per-hour"
	// ListPriceAnnotation is that price in the cloud's list, if it differs. Written and read like PriceAnnotation.
	ListPriceAnnotation = Group + "/list-micro-usd-per-hour"

	// PlannedPodsAnnotation records the pods for which the node was launched: the number of pods of each shape, keyed by a hash of their requests. Written
	// and read by the controller on NodeClaims, so that the next plan places the same pods there.
	PlannedPodsAnnotation = Group + "/planned-pods"
	// PlanAnnotation identifies the plan that launched the node, and its entry in PlannedLaunchesAnnotation. PlannedLaunchesAnnotation is on the first
	// NodeClaim of a plan and holds, as JSON, all launches that could not be made at once. Written and read by the controller, so that a restarted
	// controller continues with the same plan.
	PlanAnnotation            = Group + "/plan"
	PlannedLaunchesAnnotation = Group + "/planned-launches"

	// GPUMemoryAnnotation is how much device memory a pod needs, for example "4Gi". The pod is then planned where each GPU that it may get has that much
	// memory left. With time-slicing, which shares the memory freely, nothing enforces it. With MPS, no process of the pod can allocate more.
	// Written by users on pods (templates), read by the controller, and by the agent where GPUs are shared with MPS.
	GPUMemoryAnnotation = nodecontract.GPUMemoryAnnotation

	// ThroughputAnnotation is how much work a pod does on each model of GPU, for example "t4=1, a10g=2.4, *=0.5". Plans then minimize the price of work. Written by users
	// on pods (templates), read by the controller.
	ThroughputAnnotation = Group + "/throughput"
	// FollowsLoadAnnotation says that the number of such pods follows their load ("true"), so that faster GPUs need fewer of them. Pods of Jobs do not need it. Written
	// by users on pods (templates), read by the controller.
	FollowsLoadAnnotation = Group + "/replicas-follow-load"

	// GroupAnnotation names a group of pods of a namespace that are of use only together, and GroupMinMembersAnnotation is how many of them are needed at once, for example
	// "8". Machines are launched for that many of the pods or for none. Written by users on pods (templates), read by the controller.
	GroupAnnotation           = Group + "/group"
	GroupMinMembersAnnotation = Group + "/group-min-members"

	// IdleSinceAnnotation is the time (RFC 3339) at which the controller first saw the Node without pods. Written and read by the controller; removed when
	// a pod is bound to the Node.
	IdleSinceAnnotation = Group + "/idle-since"
	// DisruptingSinceAnnotation is the time (RFC 3339) at which the controller put DisruptingTaintKey on the Node. Written and read by the controller, so
	// that a restarted controller continues where it stopped.
	DisruptingSinceAnnotation = Group + "/disrupting-since"

	// ReplacingAnnotation is the reason why the node is about to be replaced, such as NodePoolDrifted or Expiring. Its pods get room elsewhere first.
	// Written by the controller on NodeClaims; read by the planner. Removed if the node stays after all.
	ReplacingAnnotation = Group + "/replacing"
	// ReplacingSinceAnnotation is the time (RFC 3339) at which ReplacingAnnotation was written. Written and read by the controller, so that a restarted
	// controller continues where it stopped.
	ReplacingSinceAnnotation = Group + "/replacing-since"
	// ReplacementFailuresAnnotation counts consecutive failures to provide room elsewhere for the node's pods. ReplaceAfterAnnotation is the time (RFC
	// 3339) before which Karve does not retry. Written and read by the controller on NodeClaims; people may remove both.
	ReplacementFailuresAnnotation = Group + "/replacement-failures"
	ReplaceAfterAnnotation        = Group + "/replace-after"
	// ReplacesAnnotation lists the Nodes, separated by commas, whose pods the node was launched for. Written on NodeClaims, synced to the Node by
	// Karpenter; read by people.
	ReplacesAnnotation = Group + "/replaces"

	// ReplicasShortSinceAnnotation is the time (RFC 3339) at which the controller first saw the Node expose fewer replicas than promised, after it had
	// exposed all of them. Written and read by the controller on Nodes; removed when they are back.
	ReplicasShortSinceAnnotation = Group + "/replicas-short-since"
	// ReplicasReadySinceAnnotation is the time (RFC 3339) at which the controller removed ReplicasNotReadyTaintKey from the Node. The node then has a
	// limited time to become initialized. Written and read by the controller.
	ReplicasReadySinceAnnotation = Group + "/replicas-ready-since"
	// RepairsAnnotation counts consecutive nodes for the same pods that became unhealthy soon after their launch. The node is then not replaced as soon as
	// they were. Written and read by the controller on NodeClaims; people may remove it.
	RepairsAnnotation = Group + "/repairs"

	// EvictWhenUnusedAnnotation allows Karve to evict a pod that has not used the GPU for this time, for example "2h": 10m to 720h. Written by users on
	// pods (templates), read by the controller.
	EvictWhenUnusedAnnotation = Group + "/evict-when-unused"

	// SchedulingRetriedLabel is the time, in seconds since 1970, at which the controller last made the scheduler retry pods that have room on a Node with
	// backend DRA. Only a change of a label triggers a retry. Written by the controller on such Nodes; read by nobody.
	SchedulingRetriedLabel = Group + "/scheduling-retried"

	// CanaryLabel is the name of the GPUImageRollout on the NodeClaim, EC2NodeClass or pod of its canary node, which tests a machine image. Such a
	// NodeClaim holds no user pods and takes no part in planning. It counts against its NodePool's limits. Written by the controller; read by everybody.
	CanaryLabel = Group + "/canary-of"
	// ImageRolloutAnnotation is the name of the GPUImageRollout that has pinned an EC2NodeClass. Written by the controller when it takes the class over;
	// read by the controller and by people. If it is removed, the controller takes the class over again, with the image that the class then has.
	ImageRolloutAnnotation = Group + "/image-rollout"
	// FormerSelectorTermsAnnotation holds spec.amiSelectorTerms of an EC2NodeClass, as JSON, from before the takeover. Written by the controller, read by
	// people.
	FormerSelectorTermsAnnotation = Group + "/former-ami-selector-terms"

	// CanaryTaintKey is the taint (NoSchedule) that keeps pods off a canary node. DaemonSets that have to run there, such as the one that exposes the replicas, tolerate it.
	CanaryTaintKey = Group + "/canary"
	// ReplicasNotReadyTaintKey is the startup taint (NoSchedule) of every node that Karve launches. The controller removes it when the Node's allocatable
	// has the promised replicas.
	ReplicasNotReadyTaintKey = nodecontract.ReplicasNotReadyTaint
	// SurplusTaintKey is the taint (PreferNoSchedule) on a Node that the cheapest layout does not need. New pods prefer other nodes, so that this one
	// drains by itself. Written by the controller, and removed when the layout changes.
	SurplusTaintKey = Group + "/surplus"
	// DisruptingTaintKey is the taint (NoSchedule) on a Node that the controller is about to delete. Karpenter's own karpenter.sh/disrupted is not used:
	// stock Karpenter removes it from nodes that it does not disrupt itself.
	DisruptingTaintKey = Group + "/disrupting"
)

// Names of resources that pods request, as in NVIDIA's device plugin.
const (
	// ResourceGPU is a whole GPU, and a replica that is not renamed.
	ResourceGPU = nodecontract.ResourceGPU
	// ResourceGPUShared is a renamed replica.
	ResourceGPUShared = nodecontract.ResourceGPUShared
)
