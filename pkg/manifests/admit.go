package manifests

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// admit writes into a pod what the API server writes into it: its priority, and the requests that it leaves out. The parts that are
// changed are copied before.
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
	// What a pod asks for as a whole is by default what its containers ask for together, and its limit where they ask for none.
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

// withDefaultRequests are the containers with their limits for the requests that they leave out.
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
