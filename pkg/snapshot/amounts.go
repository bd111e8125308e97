package snapshot

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"karve.sh/karve/pkg/planner"
)

// requests is what a pod asks of one node, init containers, sidecars, overhead and pod-level resources counted as the scheduler does;
// Replicas counts the resource gpu.
func requests(pod *corev1.Pod, gpu corev1.ResourceName) planner.Resources {
	r := amounts(podRequests(pod), gpu)
	r.Pods = 1
	return r
}

func amounts(list corev1.ResourceList, gpu corev1.ResourceName) planner.Resources {
	return planner.Resources{
		MilliCPU: list.Cpu().MilliValue(), MemoryBytes: list.Memory().Value(), EphemeralBytes: list.StorageEphemeral().Value(),
		Pods: list.Pods().Value(), Replicas: valueOf(list, gpu),
	}
}

func valueOf(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q, ok := list[name]
	if !ok {
		return 0
	}
	return q.Value()
}

func plus(a, b planner.Resources) planner.Resources {
	return planner.Resources{
		MilliCPU: a.MilliCPU + b.MilliCPU, MemoryBytes: a.MemoryBytes + b.MemoryBytes, EphemeralBytes: a.EphemeralBytes + b.EphemeralBytes,
		Pods: a.Pods + b.Pods, Replicas: a.Replicas + b.Replicas,
	}
}

func minus(a, b planner.Resources) planner.Resources {
	return planner.Resources{
		MilliCPU: a.MilliCPU - b.MilliCPU, MemoryBytes: a.MemoryBytes - b.MemoryBytes, EphemeralBytes: a.EphemeralBytes - b.EphemeralBytes,
		Pods: a.Pods - b.Pods, Replicas: a.Replicas - b.Replicas,
	}
}

func atLeastZero(a planner.Resources) planner.Resources {
	return planner.Resources{
		MilliCPU: max(0, a.MilliCPU), MemoryBytes: max(0, a.MemoryBytes), EphemeralBytes: max(0, a.EphemeralBytes),
		Pods: max(0, a.Pods), Replicas: max(0, a.Replicas),
	}
}

// orElse is a, with b where a has nothing; Replicas are a's.
func orElse(a, b planner.Resources) planner.Resources {
	return planner.Resources{
		MilliCPU: cmp.Or(a.MilliCPU, b.MilliCPU), MemoryBytes: cmp.Or(a.MemoryBytes, b.MemoryBytes),
		EphemeralBytes: cmp.Or(a.EphemeralBytes, b.EphemeralBytes), Pods: cmp.Or(a.Pods, b.Pods), Replicas: a.Replicas,
	}
}

func sortedKeys[K cmp.Ordered, V any, M ~map[K]V](m M) []K { return slices.Sorted(maps.Keys(m)) }

func podRequests(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}
