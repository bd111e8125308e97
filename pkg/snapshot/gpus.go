package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
)

const bytesPerMiB = 1 << 20

// maxReplicasPerGPU is far more than a GPUNodeClass allows. Larger numbers, which people can write into annotations, are not believed.
const maxReplicasPerGPU = 1 << 16

// gpuMemory is the device memory that a pod states, in bytes; 0 when it states none.
func gpuMemory(pod *corev1.Pod) (int64, error) {
	stated, ok := pod.Annotations[v1alpha1.GPUMemoryAnnotation]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(stated)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("annotation %s is %.64q, which is no amount of memory: write one such as 4Gi", v1alpha1.GPUMemoryAnnotation, stated)
	}
	return min(amount.Most, amount.Value(q)), nil
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
	takeEvenly(gpus, replicas)
	return of
}

// takeEvenly takes replicas off the GPUs one by one, each off the roomiest, but in steps that do not depend on their number: first it lowers all GPUs to the
// level at which the last replicas are taken, then it takes those.
func takeEvenly(gpus []planner.GPU, replicas int64) {
	order := make([]int, len(gpus))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(gpus[j].Replicas, gpus[i].Replicas) })
	// The GPUs above the level, those of order[:n], are all lowered to it.
	for n := 1; n <= len(order) && replicas > 0; n++ {
		level, next := gpus[order[n-1]].Replicas, int64(0)
		if n < len(order) {
			next = gpus[order[n]].Replicas
		}
		down := min(level-next, replicas/int64(n))
		for _, i := range order[:n] {
			gpus[i].Replicas = level - down
		}
		if replicas -= down * int64(n); down == level-next {
			continue
		}
		rest := slices.Clone(order[:n])
		slices.SortFunc(rest, func(i, j int) int {
			return cmp.Or(cmp.Compare(gpus[j].MemoryBytes, gpus[i].MemoryBytes), cmp.Compare(i, j))
		})
		for _, i := range rest[:replicas] {
			gpus[i].Replicas--
		}
		return
	}
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
	gpus := fresh(count, max(perGPU, ceil(exposed, count)), memoryMiB)
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
	if mib := numberIn(labels, nodecontract.GPUMemoryLabel, catalog.MaxMemoryMiB); mib > 0 {
		return mib
	}
	if t != nil {
		return t.GPU.UsableMiB()
	}
	return 0
}

// gpuCount is the number of GPUs of a node that is not ours; 0 when it is not known. Its label may be anybody's, so it is no more than the replicas that the
// kubelet exposes, of which each GPU has one at least.
func gpuCount(labels map[string]string, t *catalog.InstanceType, exposed int64) int64 {
	n := numberIn(labels, nodecontract.GPUCountLabel, catalog.MaxGPUs)
	if n == 0 && t != nil {
		n = t.GPU.Count
	}
	return min(n, exposed)
}

// numberIn is the number that a label or annotation holds; 0 for what is none, or more than most.
func numberIn(values map[string]string, key string, most int64) int64 {
	n, err := strconv.ParseInt(values[key], 10, 64)
	if err != nil || n < 0 || n > most {
		return 0
	}
	return n
}

// GPUsHeld returns on which GPU of the machine each of its pods is taken to be; -1 for one that states no device memory.
func (m *Machine) GPUsHeld() map[*corev1.Pod]int {
	_, on := gpusHeld(m.Promise.GPUs, m.Promise.ReplicasPerGPU, memoryMiB(m.Node.Labels, m.Type), m.Exposed(), m.Pods, m.Promise.Resource)
	return on
}
