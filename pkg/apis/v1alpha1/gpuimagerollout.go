package v1alpha1

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a GPUImageRollout, in addition to Accepted. Ready is True while the EC2NodeClass is pinned to an image that may be launched.
const (
	// ConditionProgressing is True while an image is tested, waits for a window, or is rolled out to the nodes.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True while new images cannot roll out until a person or AWS fixes something. Existing nodes continue to run.
	ConditionDegraded = "Degraded"
)

// ImageNewest makes a rollout follow the newest image that AWS recommends.
const ImageNewest = "Newest"

// Promotion defines whether a rollout may change anything.
// +kubebuilder:validation:Enum=Automatic;Paused
type Promotion string

const (
	// PromotionAutomatic tests new images, promotes those that pass, and replaces the nodes.
	PromotionAutomatic Promotion = "Automatic"
	// PromotionPaused starts no tests and does not change the EC2NodeClass. A test that has started runs to its end.
	PromotionPaused Promotion = "Paused"
)

// RolloutStep is the step of a rollout.
// +kubebuilder:validation:Enum=Pending;Settled;Testing;Soaking;Waiting;Rolling
type RolloutStep string

const (
	// StepPending means that Karve has not taken over the EC2NodeClass yet.
	StepPending RolloutStep = "Pending"
	// StepSettled means that all nodes run the pinned image and there is no other image to test.
	StepSettled RolloutStep = "Settled"
	// StepTesting means that a canary node is starting with a new image, or that its GPU check is about to run or running.
	StepTesting RolloutStep = "Testing"
	// StepSoaking means that Karve is watching the canary node.
	StepSoaking RolloutStep = "Soaking"
	// StepWaiting means that an image has passed and waits for a window or for a person.
	StepWaiting RolloutStep = "Waiting"
	// StepRolling means that nodes with another image than the pinned one are being replaced.
	StepRolling RolloutStep = "Rolling"
)

// GPUImageRollout keeps the machine image of an EC2NodeClass for GPU nodes up to date. It tests a new image on one canary node, promotes it by pinning
// the EC2NodeClass to it, and rolls back to the previous image if nodes do not start with the new one.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpuimagerollouts,scope=Cluster,categories=karve,shortName=gir
// +kubebuilder:printcolumn:name="NodeClass",type=string,JSONPath=`.spec.nodeClassRef.name`
// +kubebuilder:printcolumn:name="Current",type=string,JSONPath=`.status.current.release`
// +kubebuilder:printcolumn:name="Candidate",type=string,JSONPath=`.status.candidate.image.release`
// +kubebuilder:printcolumn:name="Step",type=string,JSONPath=`.status.step`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.nodesUpdated`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name becomes the value of a label: make it at most 63 characters long"
type GPUImageRollout struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +required
	Spec GPUImageRolloutSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status GPUImageRolloutStatus `json:"status,omitzero"`
}

// GPUImageRolloutList is a list of GPUImageRollouts.
//
// +kubebuilder:object:root=true
type GPUImageRolloutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUImageRollout `json:"items"`
}

// GPUImageRolloutSpec is the desired state of a GPUImageRollout.
type GPUImageRolloutSpec struct {
	// nodeClassRef names the EC2NodeClass whose image the rollout manages. It cannot be changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.group == 'karpenter.k8s.aws' && self.kind == 'EC2NodeClass'",message="nodeClassRef must name an EC2NodeClass of the group karpenter.k8s.aws"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeClassRef cannot be changed: create another GPUImageRollout for another EC2NodeClass"
	NodeClassRef NodeClassReference `json:"nodeClassRef"`
	// image is Newest, which follows the image that AWS recommends for the cluster's version and the family of the EC2NodeClass, a release, such as v20261112
	// (AL2023) or 1.49.0 (Bottlerocket), or an image ID. A release that has run well is pinned immediately, without a canary and outside windows. Any other is
	// tested first, a distrusted one once more. Default: Newest.
	// +optional
	// +kubebuilder:default=Newest
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == 'Newest' || self.matches('^(v?[0-9][0-9A-Za-z.-]*|ami-[0-9a-z]+)$')",message="image is Newest, a release such as v20261112 or 1.49.0, or the id of an image such as ami-0123456789abcdef0"
	Image string `json:"image,omitempty"`
	// promotion is Automatic or Paused. Default: Automatic.
	// +optional
	// +kubebuilder:default=Automatic
	Promotion Promotion `json:"promotion,omitempty"`
	// promoteNow is a release or image ID to promote as soon as its canary has passed the GPU check, without the rest of the soak and outside windows.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	PromoteNow string `json:"promoteNow,omitempty"`
	// soak is how long Karve watches a canary node after its GPU check has passed, such as "24h". At most 720h. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,4}h)+$') && duration(self) <= duration('720h')",message="soak is a time such as 30m or 24h, at most 720h"
	Soak string `json:"soak,omitempty"`
	// canaryTimeout is how long a canary node may take from its launch until it passes the GPU check. An image that takes longer is distrusted. From 1m to 14m.
	// Default: 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,4}s|[0-9]{1,3}m)+$') && duration(self) >= duration('1m') && duration(self) <= duration('14m')",message="canaryTimeout is a time such as 10m, from 1m to 14m"
	CanaryTimeout string `json:"canaryTimeout,omitempty"`
	// check is the container that checks the GPU of the canary node.
	// +optional
	// +kubebuilder:default={}
	Check GPUCheck `json:"check,omitzero"`
	// windows are the times at which Karve may promote an image that has passed. Nodes are then replaced at the pace of their NodePools' budgets. An empty list
	// allows any time. Default: Monday to Thursday from 09:00 to 15:00 UTC.
	// +optional
	// +listType=atomic
	// +kubebuilder:default={{schedule: "0 9 * * 1-4", duration: "6h"}}
	// +kubebuilder:validation:MaxItems=16
	Windows []PromotionWindow `json:"windows"`
}

// GPUCheck is a container that runs on the canary node with one GPU replica. It must end with exit status 0.
type GPUCheck struct {
	// image is the container image. Default: the controller's --gpu-check-image, with the argument check.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// command is the command with its arguments. Default: that of the image.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=1024
	Command []string `json:"command,omitempty"`
}

// PromotionWindow is a recurring time window.
type PromotionWindow struct {
	// schedule is when the window opens: a cron expression of five fields, or a macro such as @daily.
	// +required
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^(@(annually|yearly|monthly|weekly|daily|midnight|hourly)|[^= ]+( [^= ]+){4})$')",message="schedule is cron syntax of five fields, such as '0 9 * * 1-4'; the time zone goes into timeZone"
	Schedule string `json:"schedule"`
	// duration is how long the window stays open, such as "6h". From 1m to 168h.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,5}m|[0-9]{1,3}h)+$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="duration is a time such as 6h or 90m, from 1m to 168h"
	Duration string `json:"duration"`
	// timeZone is the time zone of schedule, such as Europe/Berlin. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	TimeZone string `json:"timeZone,omitempty"`
}

// GPUImageRolloutStatus is the observed state of a GPUImageRollout.
type GPUImageRolloutStatus struct {
	// conditions are Accepted, Ready, Progressing and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// step is the current step.
	// +optional
	Step RolloutStep `json:"step,omitempty"`
	// stepSince is when the current step began.
	// +optional
	StepSince *metav1.Time `json:"stepSince,omitempty"`
	// current is the image that the EC2NodeClass is pinned to.
	// +optional
	Current *GPUImage `json:"current,omitempty"`
	// replaced is the previous pinned image, while the change is in progress.
	// +optional
	Replaced *GPUImage `json:"replaced,omitempty"`
	// candidate is the image that is being tested, or that has passed and waits.
	// +optional
	Candidate *CandidateImage `json:"candidate,omitempty"`
	// canary is the canary node.
	// +optional
	Canary *CanaryNode `json:"canary,omitempty"`
	// good lists the images that all nodes have run well, latest first. If a promoted image fails, Karve rolls back to the first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Good []GPUImage `json:"good,omitempty"`
	// distrusted lists the images that failed, latest first. Karve tests them again only if spec.image is edited to name them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Distrusted []DistrustedImage `json:"distrusted,omitempty"`
	// failedNodes lists nodes that were launched with the current image and never exposed their replicas.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=253
	FailedNodes []string `json:"failedNodes,omitempty"`
	// nodes is the number of nodes of the EC2NodeClass, without the canary.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Nodes int64 `json:"nodes"`
	// nodesUpdated is the number of nodes that have the current image.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodesUpdated int64 `json:"nodesUpdated"`
}

// GPUImage is a release of a machine image: one image for each architecture.
type GPUImage struct {
	// release is the name of the release, such as v20261112 or 1.49.0, or the image ID if there is none.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Release string `json:"release"`
	// images are the images of the release, by architecture.
	// +required
	// +listType=map
	// +listMapKey=architecture
	// +kubebuilder:validation:MaxItems=2
	Images []ArchitectureImage `json:"images"`
	// created is when the newest of the images was created, if known.
	// +optional
	Created *metav1.Time `json:"created,omitempty"`
}

// ArchitectureImage is the machine image for one architecture.
type ArchitectureImage struct {
	// architecture is amd64 or arm64.
	// +required
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture"`
	// id is the image ID.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
}

// CandidateImage is an image that is being tested.
type CandidateImage struct {
	// image is the image.
	// +required
	Image GPUImage `json:"image"`
	// passed lists the IDs of the images that passed on a canary node.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=63
	Passed []string `json:"passed,omitempty"`
	// attempts is the number of canaries without a result, for example because no node was available.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempts int32 `json:"attempts,omitempty"`
	// notBefore is the time from which the next canary may be launched.
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// message describes how the last canary without a result ended.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// CanaryNode is the node on which an image is tested.
type CanaryNode struct {
	// name is the name of the NodeClaim, of its EC2NodeClass, and of the pod that checks the GPU.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// image is the image ID.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Image string `json:"image"`
	// architecture is the architecture of the image: amd64 or arm64.
	// +required
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture"`
	// started is when Karve decided to launch the canary.
	// +required
	Started metav1.Time `json:"started"`
	// requested is when Karve created the NodeClaim.
	// +optional
	Requested *metav1.Time `json:"requested,omitempty"`
	// launched is when the cloud launched the node. canaryTimeout is measured from this time.
	// +optional
	Launched *metav1.Time `json:"launched,omitempty"`
	// node is the name of the Node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// passed is when the GPU check passed. The soak starts at this time.
	// +optional
	Passed *metav1.Time `json:"passed,omitempty"`
	// unwellSince is when the node became unhealthy during the soak.
	// +optional
	UnwellSince *metav1.Time `json:"unwellSince,omitempty"`
}

// DistrustedImage is an image that failed.
type DistrustedImage struct {
	// image is the image.
	// +required
	Image GPUImage `json:"image"`
	// reason is a one-word reason why the image is distrusted.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason"`
	// message is what Karve observed.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// since is when the image failed.
	// +required
	Since metav1.Time `json:"since"`
	// generation is the generation of the spec under which the image failed. A later generation that names the image starts another test.
	// +required
	Generation int64 `json:"generation"`
}

// IDs returns the sorted IDs of the images.
func (g *GPUImage) IDs() []string {
	if g == nil {
		return nil
	}
	ids := make([]string, 0, len(g.Images))
	for _, image := range g.Images {
		ids = append(ids, image.ID)
	}
	slices.Sort(ids)
	return ids
}

// Same reports whether both consist of the same images.
func (g *GPUImage) Same(other *GPUImage) bool {
	return g != nil && other != nil && slices.Equal(g.IDs(), other.IDs())
}

// Named reports whether a name in the spec refers to the image: its release, with or without a leading v, or the ID of its only image.
func (g *GPUImage) Named(name string) bool {
	return g != nil && name != "" && (strings.TrimPrefix(name, "v") == strings.TrimPrefix(g.Release, "v") || len(g.Images) == 1 && name == g.Images[0].ID)
}
