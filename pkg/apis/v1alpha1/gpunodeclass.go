package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a GPUNodeClass. NodePools that name a GPUNodeClass get Karpenter's own condition types (ValidationSucceeded,
// NodeClassReady, Ready) and those below that speak of pools.
const (
	// ConditionAccepted says whether the spec can be used as it is.
	ConditionAccepted = "Accepted"
	// ConditionReady says whether machines can be launched with the class: it is accepted, and the cloud's own node class is there and Ready.
	ConditionReady = "Ready"
	// ConditionCatalogFresh is False while instance types, zones or prices of the class's machines could not be read when they should have been. Pools of
	// the class go on with what is known; where that is nothing the class is not Ready.
	ConditionCatalogFresh = "CatalogFresh"

	// ConditionFieldsHonored is on GPUNodeClasses and NodePools. It is False while a field is set to something that Karve does not do, and its message says what
	// to do instead. Nodes are launched all the same.
	ConditionFieldsHonored = "FieldsHonored"

	// ConditionLaunchHealthy is False on a NodePool while the cloud refuses offerings of it.
	ConditionLaunchHealthy = "LaunchHealthy"
	// ConditionReplicasHealthy is False on a NodePool while its machines do not expose the replicas that they promised; nothing is launched then
	// but a single machine now and again, to see whether it is mended (Unknown while such a one is under way).
	ConditionReplicasHealthy = "ReplicasHealthy"
	// ConditionNodesHealthy is False on a NodePool while so many of its machines are sick that none of them is replaced.
	ConditionNodesHealthy = "NodesHealthy"
	// ConditionHeadroomReady is on a NodePool that has headroom: True while all of it is free, Unknown while the rest is on its way, and False while there is
	// nothing for the rest. The reason and message say why.
	ConditionHeadroomReady = "HeadroomReady"
)

// Strategy says how a GPU is shared.
// +kubebuilder:validation:Enum=TimeSlicing;None
type Strategy string

const (
	// StrategyTimeSlicing shares each GPU among replicas that take turns.
	StrategyTimeSlicing Strategy = "TimeSlicing"
	// StrategyNone gives whole GPUs to pods.
	StrategyNone Strategy = "None"
)

// RequestsAboveOne says what happens to a pod that asks for more than one replica.
// +kubebuilder:validation:Enum=Allow;Refuse
type RequestsAboveOne string

const (
	// RequestsAboveOneAllow serves the pod (NVIDIA's failRequestsGreaterThanOne: false). More replicas do not mean more GPU time.
	RequestsAboveOneAllow RequestsAboveOne = "Allow"
	// RequestsAboveOneRefuse leaves the pod pending with an event that says so (failRequestsGreaterThanOne: true).
	RequestsAboveOneRefuse RequestsAboveOne = "Refuse"
)

// ConsolidationPolicy says which machines are given back.
// +kubebuilder:validation:Enum=WhenCheaper;WhenIdle
type ConsolidationPolicy string

const (
	// ConsolidateWhenCheaper gives idle machines back, and moves the pods of others where that is cheaper.
	ConsolidateWhenCheaper ConsolidationPolicy = "WhenCheaper"
	// ConsolidateWhenIdle gives idle machines back, and moves no pod.
	ConsolidateWhenIdle ConsolidationPolicy = "WhenIdle"
)

// GPUNodeClass says how the GPUs of a NodePool's machines are shared and when machines are given back. A Karpenter NodePool becomes
// Karve's by naming a GPUNodeClass in spec.template.spec.nodeClassRef; the cloud's own node class, which launches the machines, is named here.
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

	// spec is what is wanted.
	// +required
	Spec GPUNodeClassSpec `json:"spec"`
	// status is what is there.
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

// GPUNodeClassSpec is what is wanted of a GPUNodeClass.
type GPUNodeClassSpec struct {
	// nodeClassRef names the cloud's own node class (on EKS an EC2NodeClass) with which Karpenter launches the machines.
	// +required
	NodeClassRef NodeClassReference `json:"nodeClassRef"`
	// sharing says how each GPU of the machines is shared.
	// +required
	Sharing Sharing `json:"sharing"`
	// consolidation says when machines are given back.
	// +optional
	// +kubebuilder:default={}
	Consolidation Consolidation `json:"consolidation,omitzero"`
	// headroom is how many replicas each NodePool of the class keeps free, so that a burst starts at once. Where several entries hold at a time the largest
	// counts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Headroom []Headroom `json:"headroom,omitempty"`
	// launch says how much choice machines are launched with.
	// +optional
	// +kubebuilder:default={}
	Launch Launch `json:"launch,omitzero"`
	// terminationGracePeriod is how long machines may drain whose NodePool sets no spec.template.spec.terminationGracePeriod, as in "30m" or "1h30m", whoever deletes them;
	// then Karpenter deletes the pods that are left, whatever their PodDisruptionBudgets and karpenter.sh/do-not-disrupt say. "Never" waits for them for good: one
	// pod that cannot be evicted then keeps a machine that is no use any more. Machines keep the value that they were launched with. At most 720h. Without it: 1h.
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
	// group is the API group of the node class, for instance karpenter.k8s.aws.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.contains('/')",message="group is the part of apiVersion before the slash, for instance karpenter.k8s.aws"
	Group string `json:"group"`
	// kind is the kind of the node class, for instance EC2NodeClass.
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

// Sharing says how each GPU is shared.
//
// +kubebuilder:validation:XValidation:rule="self.strategy != 'TimeSlicing' || has(self.replicas)",message="strategy TimeSlicing needs replicas, the number of pods that share one GPU (2 to 128)"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.replicas)",message="strategy None gives whole GPUs: remove replicas, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.maxReplicas)",message="strategy None gives whole GPUs: remove maxReplicas, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || !has(self.replicas) || self.maxReplicas >= self.replicas",message="maxReplicas is at least replicas"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.overrides) || size(self.overrides) == 0",message="strategy None gives whole GPUs: remove overrides, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.resourceName) || self.resourceName == 'nvidia.com/gpu'",message="strategy None gives whole GPUs, which are called nvidia.com/gpu: remove resourceName, or use strategy TimeSlicing"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'None' || !has(self.requestsAboveOne)",message="strategy None gives whole GPUs, of which a pod may ask several: remove requestsAboveOne, or use strategy TimeSlicing"
type Sharing struct {
	// strategy says how a GPU is shared: TimeSlicing or None.
	// +required
	Strategy Strategy `json:"strategy"`
	// replicas is the number of replicas of each GPU, 2 to 128. Required with TimeSlicing.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=128
	Replicas *int32 `json:"replicas,omitempty"`
	// maxReplicas lets a machine share each GPU into more replicas than replicas says, up to so many (2 to 128), where its pods need them and as many of the
	// largest of the pods that the NodePool admits fit, by the device memory that they state (annotation karve.sh/gpu-memory). A pod that states none counts
	// as the memory of a GPU divided by replicas. Without it: replicas. Overrides, and pools with a limit on replicas, keep their number.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=128
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// overrides are replicas for GPUs of some name, instead of replicas.
	// +optional
	// +listType=map
	// +listMapKey=gpuName
	// +kubebuilder:validation:MaxItems=32
	Overrides []ReplicasOverride `json:"overrides,omitempty"`
	// resourceName is what pods ask for: nvidia.com/gpu.shared, which no other provisioner answers, or nvidia.com/gpu.
	// Without it: nvidia.com/gpu.shared with TimeSlicing, nvidia.com/gpu with None.
	// +optional
	// +kubebuilder:validation:Enum=nvidia.com/gpu;nvidia.com/gpu.shared
	ResourceName string `json:"resourceName,omitempty"`
	// requestsAboveOne says what happens to a pod that asks for more than one replica: Allow or Refuse. Without it: Allow, as NVIDIA's plugin.
	// +optional
	RequestsAboveOne RequestsAboveOne `json:"requestsAboveOne,omitempty"`
}

// ReplicasOverride is a number of replicas for GPUs of one name.
type ReplicasOverride struct {
	// gpuName is the name of the GPU as in the label karpenter.k8s.aws/instance-gpu-name, for instance t4.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	GPUName string `json:"gpuName"`
	// replicas is the number of replicas of each such GPU, 1 to 128; 1 leaves it unshared.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	Replicas int32 `json:"replicas"`
}

// Consolidation says when machines are given back.
type Consolidation struct {
	// idleAfter is how long a machine holds no pod (DaemonSets aside) before it is given back, as in "30s" or "1h30m"; "Never" keeps idle machines.
	// At most 720h. Without it: 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == 'Never' || (self.matches('^([0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h'))",message="idleAfter is a time such as 30s, 5m or 1h30m, at most 720h, or Never to keep idle machines"
	IdleAfter string `json:"idleAfter,omitempty"`
	// policy says whether pods are moved to make the machines cheaper: WhenCheaper or WhenIdle. Without it: WhenCheaper.
	// +optional
	// +kubebuilder:default=WhenCheaper
	Policy ConsolidationPolicy `json:"policy,omitempty"`
	// minSavingPerMove is how many US dollars an hour the machines must cost less for each pod that has to move, as a decimal number. What a restart of
	// a pod costs, divided by the hours in which moving it has to pay. Without it: 0.05.
	// +optional
	// +kubebuilder:default="0.05"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]{1,6}([.][0-9]{1,6})?$`
	MinSavingPerMove string `json:"minSavingPerMove,omitempty"`
	// nearEnoughPercent is by how many percent machines may cost more than the proven lower bound where that saves moves, 0 to 100: of the pods that it pays
	// to move only as many are moved as bring the machines there. With 0 all of them are. Machines of several NodePools are looked at together, and the least
	// of what their classes say counts. Without it: 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	NearEnoughPercent *int32 `json:"nearEnoughPercent,omitempty"`
	// settleAfter is how long a pod has run, or a machine, once it counts as settled, as in "10m", at most 720h. Moving a pod that has not counts more than
	// minSavingPerMove says, in proportion and up to 20 times, and machines that have not stay. Without it: 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h')",message="settleAfter is a time such as 30s, 10m or 1h30m, at most 720h"
	SettleAfter string `json:"settleAfter,omitempty"`
	// unusedAfter is how long the pods of a machine must not have used its GPUs, though they hold replicas, before that is reported with its price, as in
	// "2h"; "Never" reports nothing. Needs karve-node on the machine. At most 720h. Without it: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == 'Never' || (self.matches('^([0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h'))",message="unusedAfter is a time such as 30m or 2h, at most 720h, or Never to report nothing"
	UnusedAfter string `json:"unusedAfter,omitempty"`
}

// Headroom is a number of free replicas that are kept.
//
// +kubebuilder:validation:XValidation:rule="has(self.schedule) == has(self.duration)",message="a headroom with a schedule needs a duration, and the other way round"
type Headroom struct {
	// replicas is how many are kept free in each NodePool of the class, 1 to 10000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Replicas int32 `json:"replicas"`
	// schedule says when the headroom begins, as a cron expression of five fields in UTC, such as "0 7 * * mon-fri", as in a NodePool's disruption budgets.
	// Without it the headroom is always kept.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$`
	Schedule string `json:"schedule,omitempty"`
	// duration is how long it is kept from each of those times on, as in "10h", at most 720h.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h')",message="duration is a time such as 30m or 10h, at most 720h"
	Duration string `json:"duration,omitempty"`
}

// Launch says how much choice machines are launched with.
type Launch struct {
	// maxPremiumPercent is how much more an hour a machine may cost than the one that was chosen, in percent of its price. Each NodeClaim names all
	// instance types and zones that serve its pods within that, so that the cloud can launch one that it has, and of spot capacity one that it will
	// have for longer. 0 leaves only what costs no more. 0 to 100. Without it: 15.
	// +optional
	// +kubebuilder:default=15
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxPremiumPercent *int32 `json:"maxPremiumPercent,omitempty"`
}

// GPUNodeClassStatus is what is there of a GPUNodeClass, over all NodePools that name it.
type GPUNodeClassStatus struct {
	// conditions are Accepted and Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// nodes is the number of machines, those on their way included.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Nodes int64 `json:"nodes"`
	// gpus is the number of physical GPUs of those machines.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GPUs int64 `json:"gpus"`
	// replicas is the number of replicas that those machines expose or will expose.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas int64 `json:"replicas"`
	// replicasInUse is the number of replicas that running pods hold.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReplicasInUse int64 `json:"replicasInUse"`
	// usdPerHour is the price of those machines in US dollars an hour, as a decimal number.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	USDPerHour string `json:"usdPerHour,omitempty"`
	// unusedNodes is the number of machines whose replicas are held by pods that have not used the GPUs for spec.consolidation.unusedAfter.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnusedNodes int64 `json:"unusedNodes"`
	// unusedUSDPerHour is the price of those machines in US dollars an hour, as a decimal number.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+([.][0-9]+)?$`
	UnusedUSDPerHour string `json:"unusedUSDPerHour,omitempty"`
	// refusedOfferings are offerings that the cloud refused to launch and that are not tried again before a stated time. Kept here so that
	// a restarted controller does not try them at once.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=250
	RefusedOfferings []RefusedOffering `json:"refusedOfferings,omitempty"`
}

// RefusedOffering is an instance type in a zone at a capacity type that the cloud refused to launch.
type RefusedOffering struct {
	// instanceType is the name of the instance type; * for all of them.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	InstanceType string `json:"instanceType"`
	// zone is the name of the zone; * for all of them.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone"`
	// capacityType is spot, on-demand or reserved; * for all of them.
	// +required
	// +kubebuilder:validation:Enum=spot;on-demand;reserved;"*"
	CapacityType string `json:"capacityType"`
	// reason is why it was refused, in one word: InsufficientCapacity, VCPULimitExceeded (then all types of the same vCPU quota with at least as many
	// vCPUs are refused), SpotInterrupted, NodeClassNotReady or another that docs/launching.md lists.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z]*$`
	Reason string `json:"reason,omitempty"`
	// nodeClassGeneration is the generation of the cloud's node class that was refused, where the refusal is about the node class: it ends once the
	// node class has another. 0 where it is not.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeClassGeneration int64 `json:"nodeClassGeneration,omitempty"`
	// failures is the number of refusals in a row, at least 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Failures int32 `json:"failures"`
	// notBefore is the time from which it may be tried again.
	// +required
	NotBefore metav1.Time `json:"notBefore"`
	// message is what was seen, in the words of whoever refused.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
