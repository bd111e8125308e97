package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
)

// What a node's agent says of its GPUs: their number, and the memory of each in MiB.
const (
	labelGPUCount  = "nvidia.com/gpu.count"
	labelGPUMemory = "nvidia.com/gpu.memory"
)

const bytesPerMiB = 1 << 20

// gpuMemory is the device memory that a pod states, in bytes; 0 when it states none.
func gpuMemory(pod *corev1.Pod) (int64, error) {
	stated, ok := pod.Annotations[v1alpha1.GPUMemoryAnnotation]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(stated)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("annotation %s is %q, which is no amount of memory: write one such as 4Gi", v1alpha1.GPUMemoryAnnotation, stated)
	}
	return q.Value(), nil
}

// fresh are GPUs that nothing uses.
func fresh(count, replicas, memoryMiB int64) []planner.GPU {
	if count <= 0 {
		return nil
	}
	return slices.Repeat([]planner.GPU{{Replicas: replicas, MemoryBytes: memoryMiB * bytesPerMiB}}, int(count))
}

// hold takes what a pod has off the GPUs. Which GPU a pod is on is not known to the API. It is taken to be where karve-node's allocation
// puts it: each replica on the GPU with the most free ones, of several on that with the most free memory, of several on the first. A pod that
// states memory is taken to be on one GPU, as far as its replicas go, and that GPU is returned; -1 for others.
func hold(gpus []planner.GPU, replicas, memoryBytes int64) int {
	of := -1
	if on := roomiest(gpus); on >= 0 && memoryBytes > 0 && replicas > 0 {
		here := min(gpus[on].Replicas, replicas)
		gpus[on].Replicas -= here
		gpus[on].MemoryBytes = max(0, gpus[on].MemoryBytes-memoryBytes)
		replicas -= here
		of = on
	}
	for ; replicas > 0; replicas-- {
		on := roomiest(gpus)
		if on < 0 {
			break
		}
		gpus[on].Replicas--
	}
	return of
}

// roomiest is the GPU that the next replica is taken of; -1 when none is left.
func roomiest(gpus []planner.GPU) int {
	best := -1
	for i, g := range gpus {
		if g.Replicas > 0 && (best < 0 || cmp.Or(cmp.Compare(g.Replicas, gpus[best].Replicas), cmp.Compare(g.MemoryBytes, gpus[best].MemoryBytes)) > 0) {
			best = i
		}
	}
	return best
}

// gpusLeft is what the pods leave of the GPUs of a node that exposes, or will expose, so many replicas; empty when nothing is known of them.
func gpusLeft(count, perGPU, memoryMiB, exposed int64, pods []*corev1.Pod, gpu corev1.ResourceName) []planner.GPU {
	gpus, _ := gpusHeld(count, perGPU, memoryMiB, exposed, pods, gpu)
	return gpus
}

// gpusHeld says besides which GPU each pod is taken to be on, -1 for one that states no device memory.
func gpusHeld(count, perGPU, memoryMiB, exposed int64, pods []*corev1.Pod, gpu corev1.ResourceName) (left []planner.GPU, on map[*corev1.Pod]int) {
	if count <= 0 {
		return nil, nil
	}
	on = map[*corev1.Pod]int{}
	// A node may come to expose more than it promised; the planner counts on the GPUs to have all that the node has.
	gpus := fresh(count, max(perGPU, (exposed+count-1)/count), memoryMiB)
	inOrder := slices.Clone(pods)
	slices.SortStableFunc(inOrder, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, pod := range inOrder {
		memory, err := gpuMemory(pod)
		if err != nil {
			memory = 0
		}
		on[pod] = hold(gpus, requests(pod, gpu).Replicas, memory)
	}
	return gpus, on
}

// memoryMiB is the device memory of each GPU of a node, as the node says or else as the catalogue does.
func memoryMiB(labels map[string]string, t *catalog.InstanceType) int64 {
	if mib := numberIn(labels, labelGPUMemory); mib > 0 {
		return mib
	}
	if t != nil {
		return t.GPU.UsableMiB()
	}
	return 0
}

// gpuCount is the number of GPUs of a node that is not ours; 0 when it is not known.
func gpuCount(labels map[string]string, t *catalog.InstanceType) int64 {
	if n := numberIn(labels, labelGPUCount); n > 0 {
		return n
	}
	if t != nil {
		return t.GPU.Count
	}
	return 0
}

// numberIn is the number that a label or annotation holds; 0 for what is none, or none that a machine can have.
func numberIn(values map[string]string, key string) int64 {
	n, err := strconv.ParseInt(values[key], 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0
	}
	return n
}
