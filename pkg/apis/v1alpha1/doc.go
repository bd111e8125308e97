// Package v1alpha1 defines the API of Karve: the GPUNodeClass, the GPUImageRollout, and the labels, annotations and taints that Karve writes.
//
// +kubebuilder:object:generate=true
// +groupName=karve.sh
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group and the prefix of all labels, annotations and taints.
const Group = "karve.sh"

// Kind is the kind in spec.template.spec.nodeClassRef of the NodePools that Karve manages.
const Kind = "GPUNodeClass"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &GPUNodeClass{}, &GPUNodeClassList{}, &GPUImageRollout{}, &GPUImageRolloutList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
