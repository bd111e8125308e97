package facts

import (
	"cmp"
	"iter"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
)

// RequestsOf returns what a pod requests of a node, and counts it as one pod. Init containers, sidecars, overhead and pod-level resources count as in the
// scheduler. Replicas is the amount of the resource gpu.
func RequestsOf(pod *corev1.Pod, gpu corev1.ResourceName) planner.Resources {
	r := ResourcesOf(PodRequests(pod), gpu)
	r.Pods = 1
	return r
}

// ResourcesOf returns the amounts of a list. Replicas is the amount of the resource gpu. If gpu is a resource of slots, it is the number of slots of
// all sizes. Amounts are at most [amount.Max], which no machine has.
func ResourcesOf(list corev1.ResourceList, gpu corev1.ResourceName) planner.Resources {
	return planner.Resources{
		MilliCPU: AmountOf(list, corev1.ResourceCPU), MemoryBytes: ValueOf(list, corev1.ResourceMemory),
		EphemeralBytes: ValueOf(list, corev1.ResourceEphemeralStorage), Pods: ValueOf(list, corev1.ResourcePods), Replicas: ReplicasIn(list, gpu),
	}
}

func ValueOf(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q, ok := list[name]
	if !ok {
		return 0
	}
	return min(amount.Max, amount.Value(q))
}

// AmountOf returns the amount of a resource in the list, in the unit that the planner uses.
func AmountOf(list corev1.ResourceList, name corev1.ResourceName) int64 {
	if name == corev1.ResourceCPU {
		return min(amount.Max, amount.Milli(list[name]))
	}
	return ValueOf(list, name)
}

func Plus(a, b planner.Resources) planner.Resources { return a.Each(b, amount.Add) }

func Minus(a, b planner.Resources) planner.Resources { return a.Each(b, amount.Sub) }

func AtLeastZero(a planner.Resources) planner.Resources {
	return a.Each(planner.Resources{}, func(a, zero int64) int64 { return max(a, zero) })
}

// OrElse returns a, with the amounts of b for resources that a lacks. Replicas are those of a.
func OrElse(a, b planner.Resources) planner.Resources {
	return planner.Resources{
		MilliCPU: cmp.Or(a.MilliCPU, b.MilliCPU), MemoryBytes: cmp.Or(a.MemoryBytes, b.MemoryBytes),
		EphemeralBytes: cmp.Or(a.EphemeralBytes, b.EphemeralBytes), Pods: cmp.Or(a.Pods, b.Pods), Replicas: a.Replicas,
	}
}

// PodRequests returns what a pod requests of a node, as the scheduler counts it. Amounts that cannot be added in bounded time count as the closest ones that can.
func PodRequests(pod *corev1.Pod) corev1.ResourceList {
	if spec := WithBoundedAmounts(&pod.Spec); spec != &pod.Spec {
		pod = &corev1.Pod{Spec: *spec}
	}
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// containerRequests returns what a container requests. A limit without a request is one: the API server writes that into pods, but not into templates.
func containerRequests(r *corev1.ResourceRequirements) corev1.ResourceList {
	for name := range r.Limits {
		if _, has := r.Requests[name]; !has {
			requests := maps.Clone(r.Limits)
			maps.Copy(requests, r.Requests)
			return requests
		}
	}
	return r.Requests
}

// AmountsOf returns the amounts of a list in the planner's units. Amounts are at most [amount.Max].
func AmountsOf(list corev1.ResourceList) map[corev1.ResourceName]int64 {
	amounts := make(map[corev1.ResourceName]int64, len(list))
	for name := range list {
		amounts[name] = AmountOf(list, name)
	}
	return amounts
}

// WithBoundedAmounts returns a pod's spec with quantities that can be added, compared and written in bounded time. It is the spec itself if all of them can.
func WithBoundedAmounts(spec *corev1.PodSpec) *corev1.PodSpec {
	bounded := true
	for list := range amountsIn(spec) {
		for _, q := range list {
			bounded = bounded && amount.Bounded(q)
		}
	}
	if bounded {
		return spec
	}
	spec = spec.DeepCopy()
	for list := range amountsIn(spec) {
		for name, q := range list {
			list[name] = amount.Clamp(q)
		}
	}
	return spec
}

func amountsIn(spec *corev1.PodSpec) iter.Seq[corev1.ResourceList] {
	return func(yield func(corev1.ResourceList) bool) {
		for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
			for i := range containers {
				if r := &containers[i].Resources; !yield(r.Requests) || !yield(r.Limits) {
					return
				}
			}
		}
		if !yield(spec.Overhead) || spec.Resources == nil || !yield(spec.Resources.Requests) {
			return
		}
		yield(spec.Resources.Limits)
	}
}

func CeilDiv(a, b int64) int64 { return (a + b - 1) / b }

const BytesPerMiB = 1 << 20

// IsInstance reports whether a resource is one of MIG instances that are named after their profile.
func IsInstance(name corev1.ResourceName) bool { return mig.IsResource(string(name)) }

// IsExtended reports whether planner.Resources has no field for the resource.
func IsExtended(name, gpu corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods, gpu:
		return false
	}
	return !IsSlot(gpu) || !IsSlot(name) // The slots of all sizes count as replicas of a machine.
}

// IsSlot reports whether a resource is one of slots.
func IsSlot(name corev1.ResourceName) bool {
	_, ok := nodecontract.ParseSlotResource(string(name))
	return ok
}

// ReplicasIn returns the amount of a GPU resource in a list. For a resource of slots, it returns the number of slots of all sizes, and for one of MIG
// instances that of instances of all profiles.
func ReplicasIn(list corev1.ResourceList, gpu corev1.ResourceName) int64 {
	switch {
	case IsSlot(gpu):
		n, _ := SlotsIn(list)
		return n
	case IsInstance(gpu):
		var n int64
		for name := range list {
			if IsInstance(name) {
				n = amount.Add(n, ValueOf(list, name))
			}
		}
		return min(amount.Max, n)
	}
	return ValueOf(list, gpu)
}

// SlotsIn returns the number of slots in a list, and their total memory in MiB.
func SlotsIn(list corev1.ResourceList) (n, mib int64) {
	for name := range list {
		if size, ok := nodecontract.ParseSlotResource(string(name)); ok {
			of := ValueOf(list, name)
			n, mib = amount.Add(n, of), amount.Add(mib, amount.Times(of, size))
		}
	}
	return min(amount.Max, n), min(amount.Max, mib)
}
