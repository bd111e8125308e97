// Package claims translates the ResourceClaims of pods into requests for GPUs. It has no client, no clock and no log.
//
// A pod that has claims for GPUs is read as a pod that requests replicas and device memory, so that all decisions about pods treat both alike: see
// [Objects.On]. Requirements of claims on the GPU itself are evaluated against the attributes that the driver of a machine will publish: see
// [Ask.Fits]. Each driver for which Karve plans is an entry of a table: see driver.
package claims

import (
	"encoding/json"
	"maps"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// annotation has the Ask of a pod that On has rewritten. It is never on an object of the API server: On removes it from pods that have it there.
const annotation = "claims.karve.sh/ask"

// Of returns the request in a pod's claims, or nil if On has not rewritten the pod.
func Of(pod *corev1.Pod) *Ask {
	text := Text(pod)
	if text == "" {
		return nil
	}
	ask := &Ask{}
	if err := json.Unmarshal([]byte(text), ask); err != nil {
		return &Ask{Refusal: "what its ResourceClaim asks cannot be read: " + err.Error()}
	}
	return ask
}

// Text returns a text that is equal only for pods whose claims request the same from GPUs, or "" for pods without a claim for a GPU.
func Text(pod *corev1.Pod) string { return pod.Annotations[annotation] }

// On returns a pod as decisions see it. If the pod has claims for GPUs, it is a copy with a container that requests the replicas and with the
// annotation for the device memory. Otherwise it is the pod itself. On does not change the pod.
func (o *Objects) On(pod *corev1.Pod) *corev1.Pod {
	if pod == nil || len(pod.Spec.ResourceClaims) == 0 && Text(pod) == "" {
		return pod
	}
	ask, gpu := o.ask(pod)
	if ask == nil && Text(pod) == "" {
		return pod
	}
	with := *pod
	with.Annotations = maps.Clone(pod.Annotations)
	delete(with.Annotations, annotation)
	if ask == nil {
		return &with
	}
	if with.Annotations == nil {
		with.Annotations = map[string]string{}
	}
	text, err := json.Marshal(ask)
	if err != nil {
		return pod // Strings and booleans can always be encoded.
	}
	with.Annotations[annotation] = unique.Make(string(text)).Value() // Pods of a template share the memory.
	delete(with.Annotations, v1alpha1.GPUMemoryAnnotation)
	total := ask.Total()
	if total.MemoryBytes > 0 && ask.Distinct() == 1 { // The annotation is for pods that find room on one GPU.
		with.Annotations[v1alpha1.GPUMemoryAnnotation] = resource.NewQuantity(total.MemoryBytes, resource.BinarySI).String()
	}
	if !RequestsGPU(&pod.Spec) {
		with.Spec.Containers = append(slices.Clone(pod.Spec.Containers), corev1.Container{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{gpu: *resource.NewQuantity(total.Replicas, resource.DecimalSI)},
		}})
	}
	return &with
}

// Requesting returns a pod that On has rewritten, without its claims, as one that requests a number of replicas of a resource, on any GPUs with the
// memory that the pod requests.
func Requesting(pod *corev1.Pod, gpu corev1.ResourceName, replicas int64) *corev1.Pod {
	with := *pod
	with.Annotations = maps.Clone(pod.Annotations)
	delete(with.Annotations, annotation)
	with.Spec.ResourceClaims = nil
	with.Spec.Containers = slices.Clone(pod.Spec.Containers)
	with.Spec.Containers[len(with.Spec.Containers)-1].Resources.Requests = corev1.ResourceList{gpu: *resource.NewQuantity(replicas, resource.DecimalSI)}
	return &with
}
