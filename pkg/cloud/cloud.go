// Package cloud defines what Karve needs from a cloud: its instance types (Catalog), and what is specific to its node classes, labels and errors
// (Provider). Each cloud has its own package, such as aws, and pkg/cloud/clouds lists them. CONTRIBUTING.md describes how to add one.
package cloud

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/catalog"
)

// Provider describes a cloud. Fields are empty for features that the cloud does not have.
type Provider struct {
	// NodeClass is the kind of the cloud's node classes.
	NodeClass schema.GroupKind
	// LabelPrefix is the prefix of the labels that describe the machines of the cloud, in addition to those of Kubernetes and Karpenter.
	LabelPrefix string
	// Managed describes the machines that the cloud itself launches, instead of the Karpenter that Karve works with. It is nil if there are none.
	Managed *Managed
	// GPULabels describe the GPUs of a machine.
	GPULabels catalog.GPULabels
	// PlaceLabels are the labels for the location of a machine, in addition to the zone label of Kubernetes. Machines of one instance type may have
	// different values.
	PlaceLabels []string
	// ReservationLabel is the label with the ID of the reservation whose slot a machine takes. It is "" if the cloud has no reservations.
	ReservationLabel string
	// ReservationField is the path of the field by which a node class selects reservations.
	ReservationField string
	// HashAnnotation and HashVersionAnnotation are annotations of a node class and of the NodeClaims that were launched with it. Their values differ after
	// the node class was changed.
	HashAnnotation, HashVersionAnnotation string
	// ReadImages returns the images in the status of a node class. It returns none if they cannot be read, so that no machine is replaced because of them.
	ReadImages func(class *unstructured.Unstructured) []Image
	// ReadSubnets returns the zones of the subnets in the status of a node class, by subnet ID.
	ReadSubnets func(class *unstructured.Unstructured) map[string]string
	// Configure returns instance types with the resources that a node class leaves to pods. The types are those of a node class without configuration. It also
	// returns the paths of fields whose effect on the resources is unknown. It returns an error for an invalid node class. It is nil if node classes change
	// nothing.
	Configure func(class *unstructured.Unstructured, types []catalog.InstanceType) (configured []catalog.InstanceType, unused []string, err error)
	// ImageField and SubnetField are the paths of the fields by which a node class selects its images and subnets, for messages.
	ImageField, SubnetField string
	// ImageRollouts is nil if Karve cannot roll out images on the cloud.
	ImageRollouts *ImageRollouts
	// QuotaGroup returns the group of an instance type whose machines share a quota of the cloud.
	QuotaGroup func(instanceType string) string
	// Quotas are the quotas of vCPUs by group and capacity type, without the limits, which are those of an account.
	Quotas []catalog.Quota
	// RaiseQuota is the command that requests a larger one of the Quotas, as a format of its code and the vCPUs.
	RaiseQuota string
	// SpotLabels are labels of spot machines that Karpenter did not launch.
	SpotLabels map[string]string
	// Interrupted is the reason of the events with which the cloud's provider reports that a spot machine will be interrupted.
	Interrupted string
	// Errors are texts in the cloud's messages that identify why a launch was refused.
	Errors []Error
	// Causes are keyed by the reasons that the cloud's provider gives for a failed launch, in addition to the reasons in v1alpha1.
	Causes map[string]Cause
}

// Images returns the images in the status of a node class.
func (p *Provider) Images(class *unstructured.Unstructured) []Image {
	if p.ReadImages == nil {
		return nil
	}
	return p.ReadImages(class)
}

// Subnets returns the zones of the subnets of a node class, by subnet ID.
func (p *Provider) Subnets(class *unstructured.Unstructured) map[string]string {
	if p.ReadSubnets == nil {
		return nil
	}
	return p.ReadSubnets(class)
}

// Group returns the group of an instance type whose machines share a quota of the cloud. If the cloud has no groups, it is the type itself.
func (p *Provider) Group(instanceType string) string {
	if p.QuotaGroup == nil {
		return instanceType
	}
	return p.QuotaGroup(instanceType)
}

// QuotaOf returns the vCPU quota that the machines of an instance type share, without its limit. It returns false if none is known.
func (p *Provider) QuotaOf(instanceType, capacityType string) (catalog.Quota, bool) {
	i := slices.IndexFunc(p.Quotas, func(q catalog.Quota) bool { return q.Group == p.Group(instanceType) && q.CapacityType == capacityType })
	if i < 0 {
		return catalog.Quota{}, false
	}
	return p.Quotas[i], true
}

// Managed describes machines that a cloud itself launches for the NodePools of its own node classes.
type Managed struct {
	// NodeClass is the kind of these node classes.
	NodeClass schema.GroupKind
	// LabelPrefix is the prefix of the labels that describe the machines. Apart from the prefix, they have the names and values of the labels with the
	// Provider's prefix.
	LabelPrefix string
	// Labels are on all of the machines.
	Labels map[string]string
}

// Image is a machine image of a node class.
type Image struct {
	ID string
	// Requirements select the machines for which the image is.
	Requirements []corev1.NodeSelectorRequirement
}

// Error is a text in a message of the cloud, with its reason in v1alpha1.
type Error struct {
	Text, Reason string
}
