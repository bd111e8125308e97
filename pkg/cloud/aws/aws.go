// Package aws describes AWS and Karpenter's provider for it. It calls no APIs. The packages api, images and instancetype do.
package aws

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
)

const group = "karpenter.k8s.aws"

// NodeClassKind is the kind of the node classes of AWS.
var NodeClassKind = schema.GroupKind{Group: group, Kind: "EC2NodeClass"}

// GPULabels are the labels with which Karpenter's AWS provider describes the GPUs of a machine.
var GPULabels = catalog.GPULabels{Name: group + "/instance-gpu-name", Count: group + "/instance-gpu-count", Memory: group + "/instance-gpu-memory"}

// AcceleratorCountLabel is the number of accelerators of a machine that are not GPUs, such as Inferentia.
const AcceleratorCountLabel = group + "/instance-accelerator-count"

// +kubebuilder:rbac:groups=karpenter.k8s.aws,resources=ec2nodeclasses,verbs=get
// +kubebuilder:rbac:feature=image-rollouts,groups=karpenter.k8s.aws,resources=ec2nodeclasses,verbs=list;create;patch;delete

// Provider describes AWS.
var Provider = cloud.Provider{
	NodeClass:             NodeClassKind,
	LabelPrefix:           group + "/",
	Managed:               &autoMode,
	GPULabels:             GPULabels,
	PlaceLabels:           []string{"topology.k8s.aws/zone-id"},
	ReservationLabel:      group + "/capacity-reservation-id",
	ReservationField:      "spec.capacityReservationSelectorTerms",
	HashAnnotation:        group + "/ec2nodeclass-hash",
	HashVersionAnnotation: group + "/ec2nodeclass-hash-version",
	ReadImages:            imagesOf,
	ReadSubnets:           subnetsOf,
	Configure:             configure,
	ImageField:            "spec.amiSelectorTerms",
	SubnetField:           "spec.subnetSelectorTerms",
	ImageRollouts:         &imageRollouts,
	QuotaGroup:            vcpuQuota,
	Quotas:                vcpuQuotas,
	RaiseQuota:            "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code %s --desired-value %s",
	SpotLabels:            map[string]string{"eks.amazonaws.com/capacityType": "SPOT"}, // of managed node groups
	Interrupted:           "SpotInterrupted",
	Errors:                launchErrors,
	Causes:                causes,
}

// autoMode is EKS Auto Mode (docs.aws.amazon.com/eks/latest/userguide/create-node-pool.html).
var autoMode = cloud.Managed{
	NodeClass: schema.GroupKind{Group: "eks.amazonaws.com", Kind: "NodeClass"}, LabelPrefix: "eks.amazonaws.com/",
	Labels: map[string]string{"eks.amazonaws.com/compute-type": "auto"},
}

// vcpuQuota returns the group of instance types whose vCPUs share an EC2 quota, one for on-demand and one for spot. The groups are G and VT, P, and others,
// by the leading letters of the type (docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-quotas.html).
func vcpuQuota(instanceType string) string {
	if i := strings.IndexFunc(instanceType, func(c rune) bool { return c < 'a' || c > 'z' }); i >= 0 {
		instanceType = instanceType[:i]
	}
	switch {
	case strings.HasPrefix(instanceType, "g"), instanceType == "vt":
		return "G and VT"
	case strings.HasPrefix(instanceType, "p"):
		return "P"
	}
	return instanceType
}

// vcpuQuotas are the quotas of the groups of vcpuQuota. The quota of P instances as spot is missing, because there are several: P5 has its own.
var vcpuQuotas = []catalog.Quota{
	{Group: "G and VT", CapacityType: "on-demand", Code: "L-DB2E81BA"},
	{Group: "G and VT", CapacityType: "spot", Code: "L-3819A6DF"},
	{Group: "P", CapacityType: "on-demand", Code: "L-417A185B"},
}

// launchErrors are the error codes of CreateFleet that Karpenter's AWS provider treats as insufficient capacity (pkg/errors, v1.15.0).
var launchErrors = []cloud.Error{
	{Text: "InsufficientInstanceCapacity:", Reason: v1alpha1.RefusalInsufficientCapacity},
	{Text: "UnfulfillableCapacity:", Reason: v1alpha1.RefusalInsufficientCapacity},
	{Text: "SpotMaxPriceTooLow:", Reason: v1alpha1.RefusalInsufficientCapacity},
	{Text: "InvalidCapacityReservationState.Unavailable:", Reason: v1alpha1.RefusalInsufficientCapacity},
	{Text: "ReservationCapacityExceeded:", Reason: v1alpha1.RefusalInsufficientCapacity},
	{Text: "MaxSpotInstanceCountExceeded:", Reason: v1alpha1.RefusalSpotQuota},
	{Text: "VcpuLimitExceeded:", Reason: v1alpha1.RefusalVCPULimit},
	{Text: "Unsupported:", Reason: v1alpha1.RefusalUnsupported},
	{Text: "InsufficientFreeAddressesInSubnet:", Reason: v1alpha1.RefusalNoAddresses},
	{Text: "MaxFleetCountExceeded:", Reason: v1alpha1.RefusalFleetQuota},
	{Text: "AuthFailure.ServiceLinkedRoleCreationNotPermitted:", Reason: v1alpha1.RefusalSpotRole},
}

// causes are keyed by the reasons of the condition Launched that the AWS provider sets (ToReasonMessage in its pkg/errors, and NewCreateError in
// pkg/cloudprovider and pkg/providers/instance, v1.15.0).
var causes = map[string]cloud.Cause{
	"FreeTierIneligible": {Scope: cloud.AboutQuota, First: time.Hour, Most: 6 * time.Hour},

	// The provider uses InternalError, like LaunchFailed, for connections that are refused or closed, hangs, timeouts, answers that cannot be decoded, and
	// errors of the service.
	"InternalError":                {Scope: cloud.AboutAccount, First: cloud.Pause, Most: cloud.LongestPause, Patience: cloud.UntilTimeout},
	"InstanceTypeResolutionFailed": {Scope: cloud.AboutAccount, First: cloud.Pause, Most: cloud.LongestPause, Patience: cloud.UntilTimeout},
	"RequestLimitExceeded":         {Scope: cloud.AboutAccount, First: cloud.Pause, Most: 5 * time.Minute, Patience: cloud.UntilTimeout},
	"AccountPendingVerification":   {Scope: cloud.AboutAccount, First: 5 * time.Minute, Most: time.Hour},

	"NodeClassReadinessUnknown": {Scope: cloud.AboutClass, First: 10 * time.Second, Most: cloud.LongestPause, Patience: cloud.FailingGrace},
	// Unauthorized is also the reason for expired credentials, which can recover without a change of the node class.
	"Unauthorized":                   {Scope: cloud.AboutClass, First: time.Minute, Most: 5 * time.Minute},
	"SubnetResolutionFailed":         {Scope: cloud.AboutClass, First: 2 * time.Minute, Most: 30 * time.Minute},
	"SecurityGroupSubnetVPCMismatch": {Scope: cloud.AboutClass, First: 2 * time.Minute, Most: 30 * time.Minute},
	"AMIAuthorizationFailure":        {Scope: cloud.AboutClass, First: 2 * time.Minute, Most: 30 * time.Minute},
	"InvalidAMIID":                   {Scope: cloud.AboutClass, First: 2 * time.Minute, Most: 30 * time.Minute},
	"AMINotFound":                    {Scope: cloud.AboutClass, First: 2 * time.Minute, Most: 30 * time.Minute},
	"UserDataSizeLimitExceeded":      {Scope: cloud.AboutClass, First: 2 * time.Minute, Most: 30 * time.Minute},
	// A new instance profile or launch template takes a while to be known everywhere in AWS.
	"InstanceProfileNameInvalid": {Scope: cloud.AboutClass, First: 2 * time.Minute, Most: 30 * time.Minute, Patience: cloud.FailingGrace},
	"LaunchTemplateNotFound":     {Scope: cloud.AboutClass, First: time.Minute, Most: 30 * time.Minute, Patience: cloud.FailingGrace},
}

// subnetsOf returns the zones of the subnets in the status of an EC2NodeClass, by subnet ID. It returns nil if there are none.
func subnetsOf(class *unstructured.Unstructured) map[string]string {
	c, err := nodeClassOf(class)
	if err != nil || len(c.Status.Subnets) == 0 {
		return nil
	}
	zones := map[string]string{}
	for _, subnet := range c.Status.Subnets {
		if subnet.ID != "" && subnet.Zone != "" {
			zones[subnet.ID] = subnet.Zone
		}
	}
	return zones
}

func imagesOf(class *unstructured.Unstructured) (images []cloud.Image) {
	c, err := nodeClassOf(class)
	if err != nil {
		return nil
	}
	for _, ami := range c.Status.AMIs {
		images = append(images, cloud.Image{ID: ami.ID, Requirements: ami.Requirements})
	}
	return images
}
