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

	// ConditionLaunchHealthy is False on a NodePool while the cloud refuses offerings of it.
	ConditionLaunchHealthy = "LaunchHealthy"
	// ConditionReplicasHealthy is False on a NodePool while its machines do not expose the replicas that they promised; nothing is launched then
	// but a single machine now and again, to see whether it is mended (Unknown while such a one is under way).
	ConditionReplicasHealthy = "ReplicasHealthy"
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
	// refusedOfferings are offerings that the cloud refused to launch and that are not tried again before a stated time. Kept here so that
	// a restarted controller does not try them at once.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	RefusedOfferings []RefusedOffering `json:"refusedOfferings,omitempty"`
}

// RefusedOffering is an instance type in a zone at a capacity type that the cloud refused to launch.
type RefusedOffering struct {
	// instanceType is the name of the instance type.
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
