package snapshot

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/planner"
)

// use is the resource use of the pods on a node.
type use struct {
	// all and daemons are the requests of the pods, and of those that DaemonSets created, in the planner's units.
	all, daemons total
	ports        map[hostPort]bool
}

// total is the sum of the requests of pods.
type total struct {
	amounts map[corev1.ResourceName]int64
	pods    int64
}

func (t *total) add(requests corev1.ResourceList) {
	t.pods++
	for name := range requests {
		if t.amounts == nil {
			t.amounts = map[corev1.ResourceName]int64{}
		}
		t.amounts[name] = amount.Add(t.amounts[name], amountOf(requests, name))
	}
}

// all returns the sum by resource. Each pod counts as one of the resource pods.
func (t *total) all() map[corev1.ResourceName]int64 {
	all := maps.Clone(t.amounts)
	if all == nil {
		all = map[corev1.ResourceName]int64{}
	}
	all[corev1.ResourcePods] = t.pods
	return all
}

// resources returns the sum with the amount of the resource gpu as replicas.
func (t *total) resources(gpu corev1.ResourceName) planner.Resources {
	return planner.Resources{
		MilliCPU: t.amounts[corev1.ResourceCPU], MemoryBytes: t.amounts[corev1.ResourceMemory], EphemeralBytes: t.amounts[corev1.ResourceEphemeralStorage],
		Pods: t.pods, Replicas: t.replicas(gpu),
	}
}

// replicas returns the amount of a GPU resource, and for one of MIG instances that of instances of all profiles.
func (t *total) replicas(gpu corev1.ResourceName) int64 {
	if !isInstance(gpu) {
		return t.amounts[gpu]
	}
	var n int64
	for name, of := range t.amounts {
		if isInstance(name) {
			n = amount.Add(n, of)
		}
	}
	return n
}

// use returns what the pods of a node use. It is computed once.
func (s *site) use() *use {
	s.once.Do(func() { s.inUse = useOf(s.pods) })
	return &s.inUse
}

func useOf(pods []*corev1.Pod) use {
	var u use
	for _, pod := range pods {
		requests := PodRequests(pod)
		u.all.add(requests)
		if ofDaemonSet(pod) {
			u.daemons.add(requests)
		}
		for _, port := range hostPorts(pod) {
			if u.ports == nil {
				u.ports = map[hostPort]bool{}
			}
			u.ports[port] = true
		}
	}
	return u
}
