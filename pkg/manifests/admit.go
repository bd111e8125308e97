package manifests

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"karve.sh/karve/pkg/amount"
)

// admit sets the fields of a pod that the API server sets, and returns why it would refuse the pod, or "". It copies the parts that it changes. A pod that
// is in a cluster already is not refused, and has its limits.
func (r *reader) admit(pod *corev1.Pod) string {
	r.prioritize(pod)
	pod.Spec.InitContainers = withDefaultRequests(pod.Spec.InitContainers)
	pod.Spec.Containers = withDefaultRequests(pod.Spec.Containers)
	withDefaultPodRequests(pod)
	if isAdmitted(&pod.ObjectMeta, &pod.Spec) {
		return ""
	}
	if refused := r.runtimeClass(&pod.Spec); refused != "" {
		return refused
	}
	for _, limits := range r.limits[pod.Namespace] {
		limits.setDefaults(&pod.Spec)
	}
	if r.aliases != nil {
		if refused := r.aliases.Apply(&pod.Spec); refused != "" {
			return refused
		}
	}
	for _, limits := range r.limits[pod.Namespace] {
		if refused := limits.refuse(pod); refused != "" {
			return refused
		}
	}
	return aboveDefault(&pod.Spec)
}

// aboveDefault returns which request is more than the limit that a LimitRange has set, or "".
func aboveDefault(pod *corev1.PodSpec) string {
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
			request := c.Resources.Requests[name]
			if limit, ok := c.Resources.Limits[name]; ok && amount.Milli(request) > amount.Milli(limit) {
				return fmt.Sprintf("container %s: its request of %s of %s is more than the default limit of its namespace, %s", c.Name, amount.Text(request), name, amount.Text(limit))
			}
		}
	}
	return ""
}

// admitDaemonSets sets what the API server sets in the pods of DaemonSets.
func (r *reader) admitDaemonSets() {
	for i := range r.cluster.DaemonSets {
		ds := &r.cluster.DaemonSets[i]
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ds.Namespace}, Spec: ds.Spec.Template.Spec}
		if r.admit(&pod) == "" {
			ds.Spec.Template.Spec = pod.Spec
		}
	}
}

// prioritize sets the priority of a pod from its class.
func (r *reader) prioritize(pod *corev1.Pod) {
	class, ok := r.priorities[pod.Spec.PriorityClassName]
	if !ok {
		return
	}
	if pod.Spec.Priority == nil {
		pod.Spec.Priority = &class.Value
	}
	if pod.Spec.PreemptionPolicy == nil {
		pod.Spec.PreemptionPolicy = class.PreemptionPolicy
	}
}

// runtimeClass sets the overhead, the node selector and the tolerations of the pod's RuntimeClass, as the admission plugin RuntimeClass does. It returns why
// the plugin would refuse the pod, or "".
func (r *reader) runtimeClass(pod *corev1.PodSpec) string {
	if pod.RuntimeClassName == nil {
		if len(pod.Overhead) > 0 {
			return "it has an overhead without a RuntimeClass"
		}
		return ""
	}
	class, ok := r.runtimeClasses[*pod.RuntimeClassName]
	if !ok {
		return ""
	}
	var overhead corev1.ResourceList
	if class.Overhead != nil {
		overhead = class.Overhead.PodFixed
	}
	if len(pod.Overhead) > 0 && !maps.EqualFunc(pod.Overhead, overhead, func(a, b resource.Quantity) bool { return amount.Milli(a) == amount.Milli(b) }) {
		return fmt.Sprintf("its overhead is not that of its RuntimeClass %s", class.Name)
	}
	pod.Overhead = overhead
	if class.Scheduling == nil {
		return ""
	}
	selector := maps.Clone(pod.NodeSelector)
	for key, value := range class.Scheduling.NodeSelector {
		if is, ok := selector[key]; ok && is != value {
			return fmt.Sprintf("its node selector %s=%s conflicts with that of its RuntimeClass %s, %s", key, is, class.Name, value)
		}
		if selector == nil {
			selector = map[string]string{}
		}
		selector[key] = value
	}
	pod.NodeSelector, pod.Tolerations = selector, slices.Clone(pod.Tolerations)
	for _, t := range class.Scheduling.Tolerations {
		if !slices.ContainsFunc(pod.Tolerations, func(has corev1.Toleration) bool { return has.MatchToleration(&t) }) {
			pod.Tolerations = append(pod.Tolerations, t)
		}
	}
	return ""
}

// withDefaultPodRequests sets the requests of the pod. They default to the sum of its containers' requests, and to the limits of the pod if the containers
// have none.
func withDefaultPodRequests(pod *corev1.Pod) {
	if pod.Spec.Resources == nil {
		return
	}
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
