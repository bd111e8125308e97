// Package snapshot turns Kubernetes objects, as they were read, into the plain values that the planner decides on. It is pure: no client, no
// clock, no log.
package snapshot

import (
	"time"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
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
	NodeOverlays  []karpv1alpha1.NodeOverlay
	InstanceTypes []catalog.InstanceType
	// Namespaces are for terms that select pods by the labels of their namespaces.
	Namespaces []corev1.Namespace
	// The volumes of pods, and how many a node can attach.
	PersistentVolumeClaims []corev1.PersistentVolumeClaim
	PersistentVolumes      []corev1.PersistentVolume
	StorageClasses         []storagev1.StorageClass
	CSINodes               []storagev1.CSINode
	// Refused are the offerings that the cloud has refused, by GPUNodeClass.
	Refused map[string][]v1alpha1.RefusedOffering
	// ReplicasTimeout is how long a registered node may go without the replicas that it promised.
	ReplicasTimeout time.Duration
}

// NodeClassState is what is known of one of the cloud's node classes.
type NodeClassState struct {
	// Ready says that machines can be launched with it: it exists, is Ready, and has been looked at since its last change.
	Ready bool
	// Reason and Message say why it is not Ready.
	Reason, Message string
}

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

func (c *Cluster) instanceType(name string) *catalog.InstanceType {
	for i := range c.InstanceTypes {
		if c.InstanceTypes[i].Name == name {
			return &c.InstanceTypes[i]
		}
	}
	return nil
}

// IsOurs says whether a NodePool names a GPUNodeClass and so is Karve's to serve; stock Karpenter ignores it.
func IsOurs(np *karpv1.NodePool) bool {
	ref := np.Spec.Template.Spec.NodeClassRef
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.Kind
}

// IsOurClaim says whether a NodeClaim was made by Karve.
func IsOurClaim(claim *karpv1.NodeClaim) bool {
	return claim.Annotations[v1alpha1.ResourceAnnotation] != "" && claim.Labels[karpv1.NodePoolLabelKey] != ""
}

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
