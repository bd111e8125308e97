package manifests

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// admit sets the fields of a pod that the API server sets: its priority and its default requests. It copies the parts that it changes.
func (r *reader) admit(pod *corev1.Pod) {
	if pod.Spec.Priority == nil {
		if value, ok := r.priorities[pod.Spec.PriorityClassName]; ok {
			pod.Spec.Priority = &value
		}
	}
	pod.Spec.InitContainers = withDefaultRequests(pod.Spec.InitContainers)
	pod.Spec.Containers = withDefaultRequests(pod.Spec.Containers)
	if pod.Spec.Resources == nil {
		return
	}
	// The requests of the pod default to the sum of its containers' requests, and to the limits of the pod if the containers have none.
	whole := pod.Spec.Resources.DeepCopy()
	defaults := corev1.ResourceList{}
	maps.Copy(defaults, whole.Limits)
	maps.Copy(defaults, resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{}))
	maps.DeleteFunc(defaults, func(name corev1.ResourceName, _ resource.Quantity) bool {
		return !resourcehelper.IsSupportedPodLevelResource(name)
	})
	maps.Copy(defaults, whole.Requests)
	whole.Requests = defaults
	pod.Spec.Resources = whole
}

// withDefaultRequests returns the containers with requests that default to the limits.
func withDefaultRequests(containers []corev1.Container) []corev1.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		if len(containers[i].Resources.Limits) == 0 {
			continue
		}
		requests := corev1.ResourceList{}
		maps.Copy(requests, containers[i].Resources.Limits)
		maps.Copy(requests, containers[i].Resources.Requests)
		containers[i].Resources.Requests = requests
	}
	return containers
}
