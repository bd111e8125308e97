package facts

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/planner"
)

// Use is the resource use of the pods on a node.
type Use struct {
	// All and Daemons are the requests of the pods, and of those that DaemonSets created, in the planner's units.
	All, Daemons Total
	Ports        map[HostPort]bool
}

// Total is the sum of the requests of pods.
type Total struct {
	Amounts map[corev1.ResourceName]int64
	pods    int64
}

func (t *Total) add(requests corev1.ResourceList) {
	t.pods++
	for name := range requests {
		if t.Amounts == nil {
			t.Amounts = map[corev1.ResourceName]int64{}
		}
		t.Amounts[name] = amount.Add(t.Amounts[name], AmountOf(requests, name))
	}
}

// byResource returns the sum by resource. Each pod counts as one of the resource pods.
func (t *Total) byResource() map[corev1.ResourceName]int64 {
	all := maps.Clone(t.Amounts)
	if all == nil {
		all = map[corev1.ResourceName]int64{}
	}
	all[corev1.ResourcePods] = t.pods
	return all
}

// Resources returns the sum with the amount of the resource gpu as replicas.
func (t *Total) Resources(gpu corev1.ResourceName) planner.Resources {
	return planner.Resources{
		MilliCPU: t.Amounts[corev1.ResourceCPU], MemoryBytes: t.Amounts[corev1.ResourceMemory], EphemeralBytes: t.Amounts[corev1.ResourceEphemeralStorage],
		Pods: t.pods, Replicas: t.replicas(gpu),
	}
}

// replicas returns the amount of a GPU resource, and for one of MIG instances that of instances of all profiles.
func (t *Total) replicas(gpu corev1.ResourceName) int64 {
	if !IsInstance(gpu) {
		return t.Amounts[gpu]
	}
	var n int64
	for name, of := range t.Amounts {
		if IsInstance(name) {
			n = amount.Add(n, of)
		}
	}
	return n
}

func useOf(pods []*corev1.Pod) Use {
	var u Use
	for _, pod := range pods {
		requests := PodRequests(pod)
		u.All.add(requests)
		if ofDaemonSet(pod) {
			u.Daemons.add(requests)
		}
		for _, port := range HostPorts(pod) {
			if u.Ports == nil {
				u.Ports = map[HostPort]bool{}
			}
			u.Ports[port] = true
		}
	}
	return u
}
