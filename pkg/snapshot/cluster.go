// Package snapshot turns Kubernetes objects, as they were read, into the plain values that the planner decides on. It is pure: no client, no
// clock, no log.
package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
)

// Cluster is what was read from the API and the cloud. The objects are not changed.
type Cluster struct {
	Now time.Time
	// NodePools are all NodePools, those of stock Karpenter too.
	NodePools      []karpv1.NodePool
	GPUNodeClasses []v1alpha1.GPUNodeClass
	// NodeClasses are the states of the cloud's node classes that the GPUNodeClasses name.
	NodeClasses map[v1alpha1.NodeClassReference]NodeClassState
	NodeClaims  []karpv1.NodeClaim
	Nodes       []corev1.Node
	Pods        []corev1.Pod
	DaemonSets  []appsv1.DaemonSet
	// NodeOverlays are those that Karpenter has found valid; they can make stock pools offer shared GPUs.
	NodeOverlays []karpv1alpha1.NodeOverlay
	// Buffers are CapacityBuffers.
	Buffers []karpenter.Buffer
	// Namespaces are for terms that select pods by the labels of their namespaces.
	Namespaces []corev1.Namespace
	// The volumes of pods, and how many a node can attach.
	PersistentVolumeClaims []corev1.PersistentVolumeClaim
	PersistentVolumes      []corev1.PersistentVolume
	StorageClasses         []storagev1.StorageClass
	CSINodes               []storagev1.CSINode
	// UnknownFields are the paths of fields that NodePools and GPUNodeClasses set and the types above do not have, by the objects' UIDs.
	UnknownFields map[types.UID][]string
	// Refused are the offerings that the cloud has refused, by GPUNodeClass.
	Refused map[string][]v1alpha1.RefusedOffering
	// Turns are those of waiting classes where one plan is not for all of them; may be nil.
	Turns Turns
	// ReplicasTimeout is how long a registered node may go without the replicas that it promised.
	ReplicasTimeout time.Duration
}

// NodeClassState is what is known of one of the cloud's node classes.
type NodeClassState struct {
	// Ready says that machines can be launched with it: it exists, is Ready, and has been looked at since its last change.
	Ready bool
	// Reason and Message say why it is not Ready.
	Reason, Message string
	// Generation is the number of its present spec; 0 where it does not exist.
	Generation int64
	// Subnets are the zones of the subnets that it has found, by id; nil for other kinds than EC2NodeClass.
	Subnets map[string]string
	// InstanceTypes are the machines that can be launched with it, with what they leave to pods of this class and where it has subnets. They are known
	// of classes that are not Ready as well, for the machines that run already.
	InstanceTypes []catalog.InstanceType
	// CatalogReason and CatalogMessage say what of the instance types, their zones and prices is out of date and why; empty when nothing is.
	CatalogReason, CatalogMessage string
	// Hash and HashVersion are Karpenter's of an EC2NodeClass, by which it tells that machines were launched with another spec; "" for other kinds.
	Hash, HashVersion string
	// Images are those that machines are launched with; nil for other kinds.
	Images []Image
}

// Learn takes what a catalogue knows of the class's machines. A class of which nothing that could be launched is known is not Ready: nothing is launched
// blind.
func (s *NodeClassState) Learn(listing catalog.Listing) {
	s.InstanceTypes, s.CatalogReason, s.CatalogMessage = listing.InstanceTypes, listing.Reason, listing.Message
	if s.Ready && listing.Reason != "" && !slices.ContainsFunc(listing.InstanceTypes, func(t catalog.InstanceType) bool { return len(t.Offerings) > 0 }) {
		s.Ready, s.Reason, s.Message = false, "CatalogUnavailable", listing.Message
	}
}

// Image is a machine image that a node class has found.
type Image = cloud.Image

// Problem is why a pool launches nothing, in the words of a condition.
type Problem struct {
	// Condition is the NodePool's condition type that is False.
	Condition       string
	Reason, Message string
}

func (c *Cluster) gpuNodeClass(name string) *v1alpha1.GPUNodeClass {
	for i := range c.GPUNodeClasses {
		if c.GPUNodeClasses[i].Name == name {
			return &c.GPUNodeClasses[i]
		}
	}
	return nil
}

// UseInstanceTypes gives all node classes the same instance types, as a catalogue does that comes from a file.
func (c *Cluster) UseInstanceTypes(types []catalog.InstanceType) {
	for ref, state := range c.NodeClasses {
		state.InstanceTypes = types
		c.NodeClasses[ref] = state
	}
}

// InstanceTypes are those of all node classes. A type that several have is as the first of them has it.
func (c *Cluster) InstanceTypes() []catalog.InstanceType {
	refs := slices.SortedFunc(maps.Keys(c.NodeClasses), compareRefs)
	if len(refs) == 1 {
		return c.NodeClasses[refs[0]].InstanceTypes
	}
	var types []catalog.InstanceType
	known := map[string]bool{}
	for _, ref := range refs {
		for _, t := range c.NodeClasses[ref].InstanceTypes {
			if !known[t.Name] {
				known[t.Name] = true
				types = append(types, t)
			}
		}
	}
	return types
}

func compareRefs(a, b v1alpha1.NodeClassReference) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// typesOf are the instance types of the node class that a NodePool of Karpenter's or a NodeClaim names; those of all classes when nothing is known of it.
func (c *Cluster) typesOf(ref *karpv1.NodeClassReference) []catalog.InstanceType {
	if ref != nil {
		if state := c.NodeClasses[v1alpha1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name}]; len(state.InstanceTypes) > 0 {
			return state.InstanceTypes
		}
	}
	return c.InstanceTypes()
}

// IsOurs says whether a NodePool names a GPUNodeClass and so is Karve's to serve; stock Karpenter ignores it.
func IsOurs(np *karpv1.NodePool) bool {
	ref := np.Spec.Template.Spec.NodeClassRef
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.Kind
}

// IsOurClaim says whether a NodeClaim was made by Karve for pods.
func IsOurClaim(claim *karpv1.NodeClaim) bool {
	return claim.Annotations[nodecontract.ResourceAnnotation] != "" && claim.Labels[karpv1.NodePoolLabelKey] != "" && !IsCanary(claim)
}

// IsCanary says whether a NodeClaim was made by Karve to try a machine image: no pod is planned for it.
func IsCanary(claim *karpv1.NodeClaim) bool { return claim.Labels[v1alpha1.CanaryLabel] != "" }

// Condition is the condition of a type among those of a NodePool or NodeClaim; nil when it is not there. Karpenter's own StatusConditions
// writes missing conditions into the object, so it is not for objects that are only read.
func Condition(conditions []status.Condition, conditionType string) *status.Condition {
	for i := range conditions {
		if conditions[i].Type == conditionType {
			return &conditions[i]
		}
	}
	return nil
}
