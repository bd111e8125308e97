package facts

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/provreq"
)

// Annotations that only objects in memory have. Caches remove those of the API server's objects.

// CutAnnotation says which parts of a pod are too large to be kept, and were left out.
const CutAnnotation = v1alpha1.Group + "/too-large"

// TooLarge returns why Karve does not plan for a pod of which parts were left out, or "" if the pod is complete.
func TooLarge(pod *corev1.Pod) string {
	cut, is := pod.Annotations[CutAnnotation]
	if !is {
		return ""
	}
	return "has " + cut + ", which Karve does not read: make them smaller"
}

// setAsideAnnotation has the reason why decisions are made without an object.
const setAsideAnnotation = "aside.karve.sh/why"

func SetAsideWhy(o metav1.Object) string { return o.GetAnnotations()[setAsideAnnotation] }

// IsSetAside reports whether decisions are made without an object.
func IsSetAside(o metav1.Object) bool { return SetAsideWhy(o) != "" }

// SetAsideSpec returns annotations with which a NodePool or a GPUNodeClass launches nothing, and its machines stay.
func SetAsideSpec(annotations map[string]string, why string) map[string]string {
	with := maps.Clone(annotations)
	if with == nil {
		with = map[string]string{}
	}
	with[setAsideAnnotation] = why
	return with
}

// requestAnnotation is the annotation of the pods that stand for a ProvisioningRequest, with its name. They exist only in memory.
const requestAnnotation = "memory." + provreq.ConsumeAnnotation

// IsVirtual reports whether a pod stands for a ProvisioningRequest.
func IsVirtual(pod *corev1.Pod) bool { return pod.Annotations[requestAnnotation] != "" }
