package records

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

var aliases = nodelabels.Aliases()

// WhenStarted returns the labels of a node that has started, given those of its NodeClaim and its machine. Karpenter adds its own labels, and the kubelet
// and the cloud also set some labels under their old names.
func WhenStarted(labels map[string]string) map[string]string {
	all := maps.Clone(labels)
	for former, key := range aliases {
		if value, ok := labels[key]; ok {
			all[former] = value
		}
	}
	all[karpv1.NodeRegisteredLabelKey] = "true"
	all[karpv1.NodeInitializedLabelKey] = "true"
	return all
}

// DaemonDemands returns what the pods of the DaemonSets require of a node.
func DaemonDemands(c *facts.Cluster) []Demand {
	demands := make([]Demand, len(c.DaemonSets))
	for i := range c.DaemonSets {
		demands[i] = DemandOf(DaemonPod(&c.DaemonSets[i]))
	}
	return demands
}

// DaemonsOn returns the DaemonSet pods that run, or may run, on a node with the taints and labels. Pods that request more than empty, the capacity of an empty node,
// never run there and do not count.
func DaemonsOn(daemons []Demand, taints []corev1.Taint, name string, labels nodelabels.Labels, empty planner.Resources, gpu corev1.ResourceName) []*Demand {
	var on []*Demand
	for i := range daemons {
		if d := &daemons[i]; empty.Covers(facts.ResourcesOf(d.Requests, gpu)) && d.runsOn(taints, name, labels) {
			on = append(on, d)
		}
	}
	return on
}

// Overhead returns the total requests of the DaemonSet pods.
func Overhead(daemons []*Demand, gpu corev1.ResourceName) planner.Resources {
	var sum planner.Resources
	for _, d := range daemons {
		asked := facts.ResourcesOf(d.Requests, gpu)
		asked.Pods = 1
		sum = facts.Plus(sum, asked)
	}
	return sum
}

// DaemonPod returns a pod as the DaemonSet would create it.
func DaemonPod(ds *appsv1.DaemonSet) *corev1.Pod {
	// Without its selectors, it counts as running on each node whose taints it tolerates.
	pod := *facts.Bounded(&corev1.Pod{ObjectMeta: ds.Spec.Template.ObjectMeta, Spec: ds.Spec.Template.Spec})
	pod.Namespace, pod.Name = ds.Namespace, ds.Name
	pod.Spec.InitContainers, pod.Spec.Containers = facts.WithDefaultRequests(pod.Spec.InitContainers), facts.WithDefaultRequests(pod.Spec.Containers)
	return &pod
}

func ResourceOf(demands []*Demand, name corev1.ResourceName) int64 {
	var n int64
	for _, d := range demands {
		n = amount.Add(n, facts.ValueOf(d.Requests, name))
	}
	return n
}
