package snapshot

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
)

// daemonDemands returns what the pods of the DaemonSets require of a node.
func (c *Cluster) daemonDemands() []demand {
	demands := make([]demand, len(c.DaemonSets))
	for i := range c.DaemonSets {
		demands[i] = demandOf(daemonPod(&c.DaemonSets[i]))
	}
	return demands
}

// daemonsOn returns the DaemonSet pods that run, or may run, on a node with the taints and labels. Pods that request more than empty, the capacity of an empty node,
// never run there and do not count.
func daemonsOn(daemons []demand, taints []corev1.Taint, name string, labels nodelabels.Labels, empty planner.Resources, gpu corev1.ResourceName) []*demand {
	var on []*demand
	for i := range daemons {
		asks := ResourcesOf(daemons[i].requests, gpu)
		if asks != within(asks, empty) {
			continue
		}
		if daemons[i].runsOn(taints, name, labels) {
			on = append(on, &daemons[i])
		}
	}
	return on
}

// overhead returns the total requests of the DaemonSet pods.
func overhead(daemons []*demand, gpu corev1.ResourceName) planner.Resources {
	var sum planner.Resources
	for _, d := range daemons {
		asked := ResourcesOf(d.requests, gpu)
		asked.Pods = 1
		sum = plus(sum, asked)
	}
	return sum
}

// daemonPod returns a pod as the DaemonSet would create it. The API server defaults requests to limits for pods, but not for templates.
func daemonPod(ds *appsv1.DaemonSet) *corev1.Pod {
	spec := ds.Spec.Template.Spec
	spec.InitContainers, spec.Containers = withDefaultRequests(spec.InitContainers), withDefaultRequests(spec.Containers)
	pod := &corev1.Pod{ObjectMeta: ds.Spec.Template.ObjectMeta, Spec: spec}
	pod.Namespace, pod.Name = ds.Namespace, ds.Name
	return withinBounds(pod) // Without its affinity, it counts as running on each node whose taints it tolerates.
}

func withDefaultRequests(containers []corev1.Container) []corev1.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		requests := corev1.ResourceList{}
		maps.Copy(requests, containers[i].Resources.Limits)
		maps.Copy(requests, containers[i].Resources.Requests)
		containers[i].Resources.Requests = requests
	}
	return containers
}

// ofDaemonSet reports whether a DaemonSet created a pod. It returns false for mirror pods, because no DaemonSet represents them.
func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}
