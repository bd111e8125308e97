package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/nodecontract"
)

// Condition types of a GPUNodeClass. NodePools that name a GPUNodeClass get Karpenter's own condition types (ValidationSucceeded, NodeClassReady,
// Ready) and the types below that mention NodePools.
const (
	// ConditionAccepted is True if the spec is valid.
	ConditionAccepted = "Accepted"
	// ConditionReady is True if the class can launch nodes: it is accepted, and the cloud's node class exists and is Ready.
	ConditionReady = "Ready"
	// ConditionCatalogFresh is False while Karve cannot read current instance types, zones or prices. NodePools of the class continue with the last known
	// ones. If none are known, the class is not Ready.
	ConditionCatalogFresh = "CatalogFresh"
	// ConditionReservationsKnown is on classes whose node class selects capacity reservations. It is True if some are found and Karve has counted their free
	// machines. Its message names them.
	ConditionReservationsKnown = "ReservationsKnown"

	// ConditionFieldsHonored is on GPUNodeClasses and NodePools. It is False while Karve does not honor the value of a field. Its message says what to do
	// instead. Karve still launches nodes.
	ConditionFieldsHonored = "FieldsHonored"

	// ConditionLaunchHealthy is False on a NodePool while the cloud refuses some of its offerings.
	ConditionLaunchHealthy = "LaunchHealthy"
	// ConditionReplicasHealthy is False on a NodePool whose nodes do not expose the promised replicas. Karve then launches nothing. It is Unknown while a
	// single node probes whether the cause is gone.
	ConditionReplicasHealthy = "ReplicasHealthy"
	// ConditionNodesHealthy is False on a NodePool while so many of its nodes are unhealthy that Karve replaces none of them.
	ConditionNodesHealthy = "NodesHealthy"
	// ConditionPlanningHealthy is False on all of Karve's NodePools while objects are set aside, because a step of a decision took too long at them. The
	// message names the steps and the objects.
	ConditionPlanningHealthy = "PlanningHealthy"
	// ConditionHeadroomReady is on a NodePool with headroom: True while all of it is free, Unknown while the rest is being launched, and False while the
	// rest cannot be provided. The reason and message say why.
	ConditionHeadroomReady = "HeadroomReady"
)

// Strategy defines how a GPU is shared.
// +kubebuilder:validation:Enum=TimeSlicing;MPS;MIG;MemorySlots;None
type Strategy string

const (
	// StrategyTimeSlicing shares each GPU among replicas that take turns.
	StrategyTimeSlicing Strategy = "TimeSlicing"
	// StrategyMPS shares each GPU with NVIDIA's MPS among replicas that run at the same time, each with a memory limit.
	StrategyMPS Strategy = "MPS"
	// StrategyMemorySlots gives pods slots of a GPU's device memory, in a few sizes.
	StrategyMemorySlots Strategy = "MemorySlots"
	// StrategyMIG divides each GPU into MIG instances with their own memory and compute.
	StrategyMIG Strategy = "MIG"
	// StrategyNone gives whole GPUs to pods.
	StrategyNone Strategy = "None"
)

// Backend defines what allocates replicas to pods.
// +kubebuilder:validation:Enum=DevicePlugin;DRA;NVIDIADRA
type Backend string

const (
	// BackendDevicePlugin exposes replicas as an extended resource of the Node, through the kubelet's device plugin API.
	BackendDevicePlugin Backend = "DevicePlugin"
	// BackendDRA exposes replicas as devices of Dynamic Resource Allocation. The scheduler creates a ResourceClaim for a pod that requests the resource.
	BackendDRA Backend = nodecontract.BackendDRA
	// BackendNVIDIADRA leaves the GPUs to NVIDIA's DRA driver, gpu.nvidia.com. Karve plans and launches the nodes.
	BackendNVIDIADRA Backend = nodecontract.BackendNVIDIADRA
)

// RequestsAboveOne defines what happens to a pod that requests more than one replica.
// +kubebuilder:validation:Enum=Allow;Refuse
type RequestsAboveOne string

const (
	// RequestsAboveOneAllow serves the pod (NVIDIA's failRequestsGreaterThanOne: false). More replicas do not mean more GPU time.
	RequestsAboveOneAllow RequestsAboveOne = "Allow"
	// RequestsAboveOneRefuse leaves the pod pending and records an event with the reason (failRequestsGreaterThanOne: true).
	RequestsAboveOneRefuse RequestsAboveOne = "Refuse"
)

// MemoryEnforcement defines what happens to a pod that uses more device memory than its slot has.
// +kubebuilder:validation:Enum=None;Watch;MPS
type MemoryEnforcement string

const (
	// MemoryEnforcementNone does nothing.
	MemoryEnforcementNone MemoryEnforcement = nodecontract.EnforceNone
	// MemoryEnforcementWatch reports the pod with an event and a metric.
	MemoryEnforcementWatch MemoryEnforcement = nodecontract.EnforceWatch
	// MemoryEnforcementMPS prevents processes from allocating more, with NVIDIA's MPS.
	MemoryEnforcementMPS MemoryEnforcement = nodecontract.EnforceMPS
)

// MIGNaming defines how the resources of MIG instances are named.
// +kubebuilder:validation:Enum=Mixed;Single
type MIGNaming string

const (
	// MIGNamingMixed names them after their profile, for example nvidia.com/mig-1g.5gb.
	MIGNamingMixed MIGNaming = nodecontract.MIGMixed
	// MIGNamingSingle names them like whole GPUs, nvidia.com/gpu, so that pods need not know about instances.
	MIGNamingSingle MIGNaming = nodecontract.MIGSingle
)

// MPSUsers defines which users' processes may share a GPU with MPS at the same time.
// +kubebuilder:validation:Enum=Any;Single
type MPSUsers string

const (
	// MPSUsersAny lets processes of all users share a GPU. The users are not isolated from each other: on the GPU, all processes run as root.
	MPSUsersAny MPSUsers = nodecontract.MPSUsersAny
	// MPSUsersSingle lets processes of one user share a GPU. Processes of other users wait until it is free.
	MPSUsersSingle MPSUsers = nodecontract.MPSUsersSingle
)

// ConsolidationPolicy defines which nodes are deleted.
// +kubebuilder:validation:Enum=WhenCheaper;WhenIdle
type ConsolidationPolicy string

const (
	// ConsolidateWhenCheaper deletes idle nodes, and moves pods to reduce the cost of the nodes.
	ConsolidateWhenCheaper ConsolidationPolicy = "WhenCheaper"
	// ConsolidateWhenIdle deletes idle nodes and moves no pods.
	ConsolidateWhenIdle ConsolidationPolicy = "WhenIdle"
)

// GPUNodeClass defines how the GPUs of a NodePool's nodes are shared and when nodes are deleted. Karve manages a NodePool if its
// spec.template.spec.nodeClassRef names a GPUNodeClass. The GPUNodeClass names the cloud's node class that launches the nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpunodeclasses,scope=Cluster,categories=karve;karpenter,shortName=gnc
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.spec.sharing.strategy`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.gpus`
// +kubebuilder:printcolumn:name="In use",type=integer,JSONPath=`.status.replicasInUse`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="USD/h",type=string,JSONPath=`.status.usdPerHour`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="NodeClass",type=string,JSONPath=`.spec.nodeClassRef.name`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
type GPUNodeClass struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +required
	Spec GPUNodeClassSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status GPUNodeClassStatus `json:"status,omitzero"`
}

// GPUNodeClassList is a list of GPUNodeClasses.
//
// +kubebuilder:object:root=true
type GPUNodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUNodeClass `json:"items"`
}

// GPUNodeClassSpec is the desired state of a GPUNodeClass.
type GPUNodeClassSpec struct {
	// nodeClassRef names the cloud's node class (on EKS an EC2NodeClass) with which Karpenter launches the nodes.
	// +required
	NodeClassRef NodeClassReference `json:"nodeClassRef"`
	// sharing defines how each GPU is shared.
	// +required
	Sharing Sharing `json:"sharing"`
	// consolidation defines when nodes are deleted and when pods are moved.
	// +optional
	// +kubebuilder:default={}
	Consolidation Consolidation `json:"consolidation,omitzero"`
	// headroom is the number of replicas that each NodePool of the class keeps free for a burst. The largest entry that applies is used.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Headroom []Headroom `json:"headroom,omitempty"`
	// launch defines how much choice a NodeClaim leaves the cloud.
	// +optional
	// +kubebuilder:default={}
	Launch Launch `json:"launch,omitzero"`
	// terminationGracePeriod is how long a node may drain if its NodePool sets no spec.template.spec.terminationGracePeriod, such as "30m" or "Never". Then
	// Karpenter deletes the remaining pods, regardless of PodDisruptionBudgets and karpenter.sh/do-not-disrupt. Existing nodes keep their value. At most 720h.
	// Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == 'Never' || (self.matches('^([0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h'))",message="terminationGracePeriod is a time such as 30m or 1h30m, at most 720h, or Never to wait for pods that cannot be evicted"
	TerminationGracePeriod string `json:"terminationGracePeriod,omitempty"`
}

// NodeClassReference names a cluster-scoped node class of a cloud provider.
//
// +kubebuilder:validation:XValidation:rule="self.group != 'karve.sh'",message="nodeClassRef must name the cloud provider's own node class, such as karpenter.k8s.aws EC2NodeClass, not a GPUNodeClass"
type NodeClassReference struct {
	// group is the API group, such as karpenter.k8s.aws.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.contains('/')",message="group is the part of apiVersion before the slash, for instance karpenter.k8s.aws"
	Group string `json:"group"`
	// kind is the kind, such as EC2NodeClass.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name is the name of the node class.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Sharing defines how each GPU is shared.
//
// +kubebuilder:validation:XValidation:rule="self.strategy != 'TimeSlicing' || has(self.replicas)",message="strategy TimeSlicing needs replicas, the number of pods that share one GPU (2 to 128)"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.replicas)",message="strategy None gives whole GPUs: remove replicas, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.maxReplicas)",message="strategy None gives whole GPUs: remove maxReplicas, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || !has(self.replicas) || self.maxReplicas >= self.replicas",message="maxReplicas must be at least replicas"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.overrides) || size(self.overrides) == 0",message="strategy None gives whole GPUs: remove overrides, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.resourceName) || self.resourceName == 'nvidia.com/gpu'",message="strategy None gives whole GPUs, which are called nvidia.com/gpu: remove resourceName, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.requestsAboveOne)",message="strategy None gives whole GPUs, and a pod may request several: remove requestsAboveOne, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MPS' || has(self.replicas)",message="strategy MPS needs replicas, the number of pods that share one GPU (2 to 48)"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MPS' || !has(self.replicas) || self.replicas <= 48",message="an MPS server has at most 48 clients: lower replicas to 48, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MPS' || !has(self.maxReplicas) || self.maxReplicas <= 48",message="an MPS server has at most 48 clients: lower maxReplicas to 48, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MPS' || !has(self.overrides) || self.overrides.all(o, o.replicas <= 48)",message="an MPS server has at most 48 clients: lower the replicas of overrides to 48, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MPS' || !has(self.requestsAboveOne) || self.requestsAboveOne == 'Refuse'",message="strategy MPS limits each replica, and more replicas would not raise the limits of a pod: remove requestsAboveOne, or set it to Refuse"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'MPS' || !has(self.mps)",message="mps is for strategy MPS: remove it, or use strategy MPS"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MIG' || has(self.mig)",message="strategy MIG needs mig.layouts, the instances that GPUs are divided into"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'MIG' || !has(self.mig)",message="mig is for strategy MIG: remove it, or use strategy MIG"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MIG' || !has(self.maxReplicas)",message="the instances of strategy MIG have equally many replicas: remove maxReplicas, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MIG' || !has(self.overrides) || size(self.overrides) == 0",message="strategy MIG has a layout for each GPU: remove overrides, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MIG' || !has(self.resourceName) || has(self.mig) && has(self.mig.naming) && self.mig.naming == 'Single'",message="resources of strategy MIG are named after the profiles of instances: remove resourceName, or set mig.naming to Single"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MIG' || !has(self.resourceName) || self.resourceName == 'nvidia.com/gpu' || has(self.replicas)",message="an instance that one pod has for itself is called nvidia.com/gpu: remove resourceName, or set replicas"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MemorySlots' || has(self.memory)",message="strategy MemorySlots needs memory.sizes, the sizes of the slots that pods can request, for instance 2Gi, 4Gi and 8Gi"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'MemorySlots' || !has(self.memory)",message="memory is for strategy MemorySlots: remove it, or use strategy MemorySlots"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MemorySlots' || !has(self.replicas) && !has(self.maxReplicas) && (!has(self.overrides) || size(self.overrides) == 0)",message="strategy MemorySlots shares GPUs by device memory: remove replicas, maxReplicas and overrides, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MemorySlots' || !has(self.resourceName)",message="strategy MemorySlots names resources after the sizes of slots, for instance nvidia.com/gpu-2gb: remove resourceName"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MemorySlots' || !has(self.requestsAboveOne) || self.requestsAboveOne == 'Refuse'",message="with strategy MemorySlots a container has one slot, since two might be on two GPUs: remove requestsAboveOne, or set it to Refuse"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'DRA' || self.strategy == 'TimeSlicing' || self.strategy == 'MIG'",message="backend DRA shares GPUs by time-slicing or as MIG instances: use strategy TimeSlicing or MIG, or backend DevicePlugin"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'DRA' || self.strategy == 'MIG' || !has(self.resourceName) || self.resourceName == 'nvidia.com/gpu.shared'",message="backend DRA serves nvidia.com/gpu.shared, the resource of its DeviceClass: remove resourceName, or use backend DevicePlugin"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'DRA' || !has(self.maxReplicas)",message="with backend DRA all GPUs of a name have equally many replicas: remove maxReplicas, or use backend DevicePlugin"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'DRA' || self.strategy == 'MIG' && !has(self.replicas) || !has(self.requestsAboveOne) || self.requestsAboveOne == 'Refuse'",message="with backend DRA each replica of a container is on a GPU of its own: remove requestsAboveOne, or set it to Refuse"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'DRA' || !has(self.overrides) || self.overrides.all(o, o.replicas >= 2)",message="backend DRA serves shared GPUs: raise the replicas of overrides to 2, or use backend DevicePlugin"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'DRA' || !has(self.replicas) || !has(self.mig) || self.mig.layouts.all(l, has(l.profile))",message="with backend DRA the instances of several profiles are not shared: remove replicas, set the profile of each layout, or use backend DevicePlugin"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'NVIDIADRA' || self.strategy == 'None' || self.strategy == 'TimeSlicing'",message="with backend NVIDIADRA, NVIDIA's driver gives pods whole GPUs or shares of them: use strategy None, or strategy TimeSlicing with the number of its consumableShares as replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'NVIDIADRA' || !has(self.resourceName) || self.resourceName == 'nvidia.com/gpu'",message="backend NVIDIADRA serves nvidia.com/gpu, the resource of NVIDIA's DeviceClass: remove resourceName"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'NVIDIADRA' || !has(self.maxReplicas)",message="NVIDIA's driver has one number of shares for all GPUs: remove maxReplicas, or use backend DevicePlugin"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'NVIDIADRA' || !has(self.overrides) || size(self.overrides) == 0",message="NVIDIA's driver has one number of shares for all GPUs: remove overrides, or use another GPUNodeClass for the other GPUs"
// +kubebuilder:validation:XValidation:rule="!has(self.backend) || self.backend != 'NVIDIADRA' || !has(self.requestsAboveOne) || self.requestsAboveOne == 'Refuse'",message="with backend NVIDIADRA each share of a container is on a GPU of its own: remove requestsAboveOne, or set it to Refuse"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.busyPercent)",message="the pods of strategy None have whole GPUs and do not slow each other down: remove busyPercent"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'MIG' || !has(self.busyPercent) || has(self.replicas)",message="pods that have an instance for themselves do not slow each other down: remove busyPercent, or set replicas"
type Sharing struct {
	// strategy is TimeSlicing (replicas take turns on a GPU), MPS (replicas run at the same time, with limits on memory and threads), MIG (instances with their
	// own memory and compute), MemorySlots (slots of a GPU's memory), or None (whole GPUs). MPS needs node.mps.enabled of the chart, MIG node.mig.enabled or
	// something else that divides GPUs. A change replaces nodes.
	// +required
	Strategy Strategy `json:"strategy"`
	// backend is DevicePlugin (replicas are an extended resource of the Node), DRA (the node agent is a DRA driver for pods with the same requests), or
	// NVIDIADRA (NVIDIA's DRA driver on the nodes allocates the GPUs, and replicas is its consumableShares). DRA and NVIDIADRA need Kubernetes 1.36 and
	// node.dra.enabled of the chart, DRA also node.dra.resources and a container runtime with CDI. A change replaces nodes. Default: DevicePlugin.
	// +optional
	Backend Backend `json:"backend,omitempty"`
	// replicas is the number of replicas of each GPU, 2 to 128, with MPS 2 to 48. With MIG, that of each instance; by default, instances are not shared.
	// Required with TimeSlicing and MPS.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=128
	Replicas *int32 `json:"replicas,omitempty"`
	// maxReplicas allows up to this number of replicas (2 to 128) instead of the field replicas: as many as the pods of a node need, and its GPU has memory for,
	// by the largest annotation karve.sh/gpu-memory of pods that the NodePool admits. A pod without it counts as the memory of a GPU divided by replicas.
	// Overrides, and NodePools with a limit on replicas, keep their number. Default: replicas.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=128
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// overrides replace the number of replicas by GPU name.
	// +optional
	// +listType=map
	// +listMapKey=gpuName
	// +kubebuilder:validation:MaxItems=32
	Overrides []ReplicasOverride `json:"overrides,omitempty"`
	// resourceName is what pods request: nvidia.com/gpu.shared, which no other provisioner serves, or nvidia.com/gpu. Default: nvidia.com/gpu.shared with
	// TimeSlicing and MPS, nvidia.com/gpu with None and with backend NVIDIADRA. With MIG, only for the naming Single.
	// +optional
	// +kubebuilder:validation:Enum=nvidia.com/gpu;nvidia.com/gpu.shared
	ResourceName string `json:"resourceName,omitempty"`
	// requestsAboveOne is Allow or Refuse, for containers that request more than one replica. Default: Allow. With MPS always Refuse.
	// +optional
	RequestsAboveOne RequestsAboveOne `json:"requestsAboveOne,omitempty"`
	// busyPercent is how much of the time a pod keeps a GPU busy that it has to itself, 1 to 100. Karve then counts that pods with the annotation
	// karve.sh/throughput slow each other down. A change replaces no nodes. Default: they do not.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	BusyPercent *int32 `json:"busyPercent,omitempty"`
	// mps defines the limits of strategy MPS.
	// +optional
	MPS *MPSSharing `json:"mps,omitempty"`
	// mig defines the instances into which strategy MIG divides GPUs.
	// +optional
	MIG *MIGSharing `json:"mig,omitempty"`
	// memory defines the slots of strategy MemorySlots.
	// +optional
	Memory *MemorySharing `json:"memory,omitempty"`
}

// MIGSharing defines the instances into which GPUs are divided. GPUs without a layout are not launched.
// +kubebuilder:validation:XValidation:rule="!has(self.naming) || self.naming != 'Single' || self.layouts.all(l, has(l.profile))",message="with naming Single pods could not tell the instances of several profiles apart: set the profile of each layout, or use naming Mixed"
type MIGSharing struct {
	// naming is Mixed (resources are named after profiles: nvidia.com/mig-1g.5gb) or Single (nvidia.com/gpu). Names of shared instances end in .shared. Default:
	// Mixed.
	// +optional
	Naming MIGNaming `json:"naming,omitempty"`
	// layouts are the possible divisions of the GPUs of a node. With naming Mixed, GPUs may have several: each new node gets the cheapest for the waiting pods.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Layouts []MIGLayout `json:"layouts"`
}

// MIGLayout divides GPUs into instances: as many of one profile as fit, or a number of each of several profiles. The GPUs of a node are all divided alike, or
// in groups.
// +kubebuilder:validation:XValidation:rule="[has(self.profile), has(self.instances), has(self.groups)].filter(x, x).size() == 1",message="a layout has one of profile, instances and groups"
type MIGLayout struct {
	// gpuName is the name of the GPU as in the label karpenter.k8s.aws/instance-gpu-name: a100, h100, h200, b200, b300 or rtx-pro-server-6000.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	GPUName string `json:"gpuName"`
	// gpuMemoryMiB restricts the layout to GPUs with this device memory, in MiB: an a100 has 40960 or 81920. Default: all GPUs with the name that have the
	// profiles.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777216
	GPUMemoryMiB *int64 `json:"gpuMemoryMiB,omitempty"`
	// profile divides each GPU into as many instances of this profile as fit, such as 3g.20gb.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z]+(\.[a-z]+)?)?$`
	Profile string `json:"profile,omitempty"`
	// instances divide each GPU into instances of several profiles, such as three of 1g.5gb and two of 2g.10gb.
	// +optional
	// +listType=map
	// +listMapKey=profile
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Instances []MIGInstances `json:"instances,omitempty"`
	// groups divide the GPUs of a node differently. The layout applies to nodes with as many GPUs as the groups have.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Groups []MIGGroup `json:"groups,omitempty"`
}

// MIGGroup is a number of GPUs of a node that are divided alike.
type MIGGroup struct {
	// gpus is the number of GPUs, 1 to 16.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	GPUs int32 `json:"gpus"`
	// instances are those of each GPU.
	// +required
	// +listType=map
	// +listMapKey=profile
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Instances []MIGInstances `json:"instances"`
}

// MIGInstances is a number of equal instances of a GPU.
type MIGInstances struct {
	// profile is the profile as in nvidia-smi, such as 1g.5gb.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z]+(\.[a-z]+)?)?$`
	Profile string `json:"profile"`
	// count is the number of such instances on each GPU, 1 to 16.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	Count int32 `json:"count"`
}

// MPSSharing are the limits of strategy MPS. They apply to each process, not to a pod as a whole.
type MPSSharing struct {
	// memoryOvercommitPercent is the sum of the memory limits of a GPU's replicas in percent of its memory, 100 to 400. With 200, each may allocate twice its
	// share while the GPU has memory left. Default: 100.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=400
	MemoryOvercommitPercent *int32 `json:"memoryOvercommitPercent,omitempty"`
	// activeThreadPercent is the share of a GPU's threads that a replica may use at once, 1 to 100. Default: 100 divided by the replicas.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	ActiveThreadPercent *int32 `json:"activeThreadPercent,omitempty"`
	// users is Any (processes of all users share a GPU, without isolation between users) or Single (those of another user wait until the GPU is free). Default:
	// Any.
	// +optional
	Users MPSUsers `json:"users,omitempty"`
}

// MemorySharing defines the slots of device memory that pods can request.
type MemorySharing struct {
	// sizes are the sizes of slots, in ascending order, at least 256Mi. Pods request 2Gi as nvidia.com/gpu-2gb, and 1536Mi as nvidia.com/gpu-1536mb. The slots
	// of a node depend on its pods. A change replaces nodes.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=10
	// +kubebuilder:validation:items:Pattern=`^[1-9][0-9]{0,6}(Mi|Gi)$`
	// +kubebuilder:validation:XValidation:rule="[1, 2, 3, 4, 5, 6, 7].all(i, i >= size(self) || quantity(self[i - 1]).isLessThan(quantity(self[i])))",message="sizes must be different and in ascending order, for instance 2Gi, 4Gi and 8Gi"
	// +kubebuilder:validation:XValidation:rule="self.all(s, quantity(s).compareTo(quantity('256Mi')) >= 0 && quantity(s).compareTo(quantity('1Ti')) <= 0)",message="sizes are 256Mi to 1024Gi"
	Sizes []string `json:"sizes"`
	// reserve is the memory of each GPU that is not for slots, for the contexts of the driver and of processes, at most 64Gi. Default: 512Mi.
	// +optional
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:Pattern=`^(0|[1-9][0-9]{0,6})(Mi|Gi)$`
	// +kubebuilder:validation:XValidation:rule="quantity(self).compareTo(quantity('64Gi')) <= 0",message="reserve is at most 64Gi"
	Reserve string `json:"reserve,omitempty"`
	// enforcement is None, Watch (an event and a metric for a pod that uses 10 percent more than its slots for 30 seconds), or MPS (processes cannot allocate
	// more). MPS needs node.mps.enabled of the chart and allows at most 48 slots per GPU. Default: Watch.
	// +optional
	Enforcement MemoryEnforcement `json:"enforcement,omitempty"`
}

// ReplicasOverride sets the number of replicas for GPUs with one name.
type ReplicasOverride struct {
	// gpuName is the name as in the label karpenter.k8s.aws/instance-gpu-name, for example t4.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	GPUName string `json:"gpuName"`
	// replicas is the number of replicas of each such GPU, 1 to 128.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	Replicas int32 `json:"replicas"`
}

// Consolidation defines when nodes are deleted and when pods are moved.
type Consolidation struct {
	// idleAfter is how long a node must have no pods, except those of DaemonSets, before it is deleted, such as "1h30m". "Never" keeps idle nodes. At most 720h.
	// Default: 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == 'Never' || (self.matches('^([0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h'))",message="idleAfter is a time such as 30s, 5m or 1h30m, at most 720h, or Never to keep idle machines"
	IdleAfter string `json:"idleAfter,omitempty"`
	// policy is WhenCheaper (idle nodes are deleted, and pods move to reduce the cost of the nodes) or WhenIdle (idle nodes are deleted, and pods do
	// not move for the cost). Default: WhenCheaper.
	// +optional
	// +kubebuilder:default=WhenCheaper
	Policy ConsolidationPolicy `json:"policy,omitempty"`
	// restartCost is the cost of restarting a pod in US dollars, weighted by its deletion cost and priority. Karve moves pods once the nodes have wasted as much
	// as the restarts cost. Default: 0.05.
	// +optional
	// +kubebuilder:default="0.05"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]{1,6}([.][0-9]{1,6})?$`
	RestartCost string `json:"restartCost,omitempty"`
	// unusedAfter is how long the pods of a node hold replicas without using the GPUs before Karve reports the node and its price, such as "2h" or "Never".
	// Needs karve-node on the node. At most 720h. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == 'Never' || (self.matches('^([0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h'))",message="unusedAfter is a time such as 30m or 2h, at most 720h, or Never to report nothing"
	UnusedAfter string `json:"unusedAfter,omitempty"`
}

// Headroom is a number of replicas to keep free.
//
// +kubebuilder:validation:XValidation:rule="has(self.schedule) == has(self.duration)",message="a headroom with a schedule needs a duration, and the other way round"
type Headroom struct {
	// replicas is how many replicas each NodePool of the class keeps free, 1 to 10000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Replicas int32 `json:"replicas"`
	// schedule is when the headroom begins: a cron expression in UTC, such as "0 7 * * mon-fri". Default: always.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$`
	Schedule string `json:"schedule,omitempty"`
	// duration is how long it lasts, such as "10h". At most 720h.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h')",message="duration is a time such as 30m or 10h, at most 720h"
	Duration string `json:"duration,omitempty"`
}

// Launch defines how much choice a NodeClaim leaves the cloud.
type Launch struct {
	// maxPremiumPercent is how much more a node may cost per hour than the chosen offering, in percent, 0 to 100. The cloud may launch all instance types and
	// zones within this premium that can serve the pods. Default: 15.
	// +optional
	// +kubebuilder:default=15
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxPremiumPercent *int32 `json:"maxPremiumPercent,omitempty"`
}

// GPUNodeClassStatus is the observed state of a GPUNodeClass, summed over all NodePools that name it.
type GPUNodeClassStatus struct {
	// conditions are Accepted, CatalogFresh, FieldsHonored and Ready, and ReservationsKnown if the node class selects capacity reservations.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// nodes is the number of nodes, including those being launched.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Nodes int64 `json:"nodes"`
	// gpus is the number of physical GPUs of the nodes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GPUs int64 `json:"gpus"`
	// replicas is the number of replicas that the nodes expose or will expose.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas int64 `json:"replicas"`
	// replicasInUse is the number of replicas that running pods hold.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReplicasInUse int64 `json:"replicasInUse"`
	// usdPerHour is the price of the nodes in US dollars per hour.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	USDPerHour string `json:"usdPerHour,omitempty"`
	// unusedNodes is the number of nodes whose pods have not used the GPUs for spec.consolidation.unusedAfter.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnusedNodes int64 `json:"unusedNodes"`
	// unusedUSDPerHour is the price of unusedNodes in US dollars per hour.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	UnusedUSDPerHour string `json:"unusedUSDPerHour,omitempty"`
	// refusedOfferings lists offerings that the cloud refused to launch, and when Karve may try them again.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=250
	RefusedOfferings []RefusedOffering `json:"refusedOfferings,omitempty"`
	// nodeMismatches lists nodes whose labels or taints do not admit the pods for which Karve launched them. Such pods get no more nodes until they, the
	// NodePool, the GPUNodeClass or the cloud's node class change, or the node gets the label.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	NodeMismatches []NodeMismatch `json:"nodeMismatches,omitempty"`
	// waste is the excess cost of the nodes since a cheaper layout became possible, and the steps for which it pays. Missing if no cheaper layout is known.
	// +optional
	Waste *Waste `json:"waste,omitempty"`
}

// Waste is the excess cost of nodes, less what was spent on restarts.
type Waste struct {
	// usd is the amount in US dollars.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	USD string `json:"usd"`
	// asOf is the time at which usd was computed.
	// +required
	AsOf metav1.Time `json:"asOf"`
	// steps lists the steps to a cheaper layout, in the order in which they are paid for. At most 20 are listed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Steps []WasteStep `json:"steps,omitempty"`
	// usdPerHour is what all steps together save in US dollars per hour. usd grows at this rate.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	USDPerHour string `json:"usdPerHour"`
}

// WasteStep is a set of nodes that are removed together, after their pods have room elsewhere.
type WasteStep struct {
	// nodeClaims are the names of the NodeClaims. At most 100 are listed.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	NodeClaims []string `json:"nodeClaims"`
	// pods is the number of pods that the step restarts.
	// +required
	// +kubebuilder:validation:Minimum=0
	Pods int32 `json:"pods"`
	// restartUSD is the cost of these restarts in US dollars. The step begins when the waste covers it and that of all earlier steps.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	RestartUSD string `json:"restartUSD"`
	// usdPerHour is what the step saves in US dollars per hour.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	USDPerHour string `json:"usdPerHour"`
}

// NodeMismatch is a node with a label that another component wrote, with another value than the pods need for which it was launched.
type NodeMismatch struct {
	// nodePool is the name of the NodePool of the node.
	// +required
	// +kubebuilder:validation:MaxLength=253
	NodePool string `json:"nodePool"`
	// nodeClaim is the name of the NodeClaim of the node, which may be gone.
	// +required
	// +kubebuilder:validation:MaxLength=253
	NodeClaim string `json:"nodeClaim"`
	// pods is a hash of what the pods request, as in the annotation karve.sh/planned-pods.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Pods string `json:"pods"`
	// label is the label of the node, empty if it is about a taint.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	Label string `json:"label,omitempty"`
	// expected is the value that was planned, or a description of it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Expected string `json:"expected,omitempty"`
	// actual is the value on the node, empty without the label.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Actual string `json:"actual,omitempty"`
	// taint is the taint of the node that the pods do not tolerate and the NodePool does not have.
	// +optional
	// +kubebuilder:validation:MaxLength=400
	Taint string `json:"taint,omitempty"`
	// nodePoolGeneration is the generation of the NodePool.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodePoolGeneration int64 `json:"nodePoolGeneration,omitempty"`
	// classGeneration is the generation of the GPUNodeClass.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ClassGeneration int64 `json:"classGeneration,omitempty"`
	// nodeClassGeneration is the generation of the cloud's node class.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeClassGeneration int64 `json:"nodeClassGeneration,omitempty"`
	// since is the time at which Karve found the difference.
	// +required
	Since metav1.Time `json:"since"`
}

// MostNodeMismatches is the number of NodeMismatches that a GPUNodeClass keeps.
const MostNodeMismatches = 100

// RefusedOffering is a combination of instance type, zone and capacity type that the cloud refused to launch.
type RefusedOffering struct {
	// instanceType is the name of the instance type, or * for all of them.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	InstanceType string `json:"instanceType"`
	// zone is the name of the zone, or * for all of them.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone"`
	// capacityType is spot, on-demand or reserved, or * for all of them.
	// +required
	// +kubebuilder:validation:Enum=spot;on-demand;reserved;"*"
	CapacityType string `json:"capacityType"`
	// reservation is the ID of the reservation of which no slot could be launched, if any.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reservation string `json:"reservation,omitempty"`
	// reason is the cause of the refusal, such as InsufficientCapacity: docs/launching.md lists them.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z]*$`
	Reason string `json:"reason,omitempty"`
	// nodeClassGeneration is the generation of the cloud's node class if the refusal concerns it. The refusal ends when it changes. Otherwise 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeClassGeneration int64 `json:"nodeClassGeneration,omitempty"`
	// failures is the number of refusals in a row, at least 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Failures int32 `json:"failures"`
	// notBefore is the time from which Karve may try the offering again.
	// +required
	NotBefore metav1.Time `json:"notBefore"`
	// message is the error message of the refusal.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
