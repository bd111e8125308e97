// Package cloud is what Karve asks of a cloud: the machines that can be launched there (Catalog), and what is particular about its node classes, labels and errors
// (Provider). What is said by one cloud alone is in a folder of its own, such as aws; pkg/cloud/clouds lists those that Karve knows. CONTRIBUTING.md says how to
// add another.
package cloud

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Provider is what Karve knows of a cloud without asking it. What is empty does not exist there.
type Provider struct {
	// NodeClass is the kind of the cloud's node classes.
	NodeClass schema.GroupKind
	// LabelPrefix begins the keys of the labels with which the cloud describes its machines, beside those of Kubernetes and Karpenter.
	LabelPrefix string
	// PlaceLabels tell where a machine is, beside the label of Kubernetes for zones: the machines of one instance type differ in them.
	PlaceLabels []string
	// HashAnnotation and HashVersionAnnotation are on a node class and on the claims launched with it. They differ once the node class was changed.
	HashAnnotation, HashVersionAnnotation string
	// Images are those that a node class launches machines with, as its status says. Images that cannot be read are none, so that nothing is replaced for them.
	Images func(class *unstructured.Unstructured) []Image
	// Subnets are the zones of a node class's subnets, by id, as its status says.
	Subnets func(class *unstructured.Unstructured) map[string]string
	// Errors are texts in a message of the cloud which tell why it refused a launch.
	Errors []Error
	// Causes are what is done about each reason that the cloud's provider gives for a launch that failed, beside those of v1alpha1.
	Causes map[string]Cause
}

// Image is a machine image of a node class.
type Image struct {
	ID string
	// Requirements say which machines it is for.
	Requirements []corev1.NodeSelectorRequirement
}

// Error is a text in a message of the cloud, and the reason of v1alpha1 that it stands for.
type Error struct {
	Text, Reason string
}
