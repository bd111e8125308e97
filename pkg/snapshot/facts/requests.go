package facts

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
)

// GPUMemory returns the device memory that a pod requests by annotation, in bytes, and 0 without the annotation. It returns an error if the value is
// invalid.
func GPUMemory(pod *corev1.Pod) (int64, error) {
	stated, ok := pod.Annotations[v1alpha1.GPUMemoryAnnotation]
	if !ok {
		return 0, nil
	}
	bytes, err := amount.Memory(stated)
	if err != nil {
		return 0, fmt.Errorf("annotation %s: %w", v1alpha1.GPUMemoryAnnotation, err)
	}
	return bytes, nil
}

// MemoryProblem returns what is wrong with the device memory that a pod states: it is no amount, or more than a GPU of gpuMiB has. It returns "" if nothing
// is. A gpuMiB of 0 is unknown.
func MemoryProblem(pod *corev1.Pod, gpuMiB int64) string {
	stated, err := GPUMemory(pod)
	switch {
	case err != nil:
		return err.Error()
	case gpuMiB > 0 && stated > gpuMiB*BytesPerMiB:
		return fmt.Sprintf("annotation %s: %s is more than the %s of a GPU of its node",
			v1alpha1.GPUMemoryAnnotation, pod.Annotations[v1alpha1.GPUMemoryAnnotation], resource.NewQuantity(gpuMiB*BytesPerMiB, resource.BinarySI))
	}
	return ""
}

// GPUResource returns the GPU resource that a pod requests. It returns false if the pod requests none. If it requests several, it is that of renamed
// replicas, or else that of whole GPUs, or else the first.
func GPUResource(pod *corev1.Pod) (corev1.ResourceName, bool) {
	if !claims.RequestsGPU(&pod.Spec) {
		return "", false
	}
	for _, gpu := range []corev1.ResourceName{v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU} {
		if RequestsOf(pod, gpu).Replicas > 0 {
			return gpu, true
		}
	}
	requested := PodRequests(pod)
	for _, name := range slices.Sorted(maps.Keys(requested)) {
		if nodecontract.IsGPUResource(string(name)) && ValueOf(requested, name) > 0 {
			return name, true
		}
	}
	return "", false
}

// GPURequest is what a pod requests of GPUs.
type GPURequest struct {
	// Resource is the GPU resource, or "" if the pod requests none. Replicas is the requested amount.
	Resource corev1.ResourceName
	Replicas int64
	// MostInOne is the largest amount in one container.
	MostInOne int64
	// MemoryBytes is the device memory that the pod requests by annotation, or that its slots have. It is 0 if there is none or if the annotation is
	// invalid.
	MemoryBytes int64
}

// GPURequestOf returns what a pod requests of GPUs.
func GPURequestOf(pod *corev1.Pod) GPURequest {
	resource, ok := GPUResource(pod)
	if !ok {
		return GPURequest{}
	}
	memory, _ := GPUMemory(pod)
	if IsSlot(resource) {
		_, mib := SlotsIn(PodRequests(pod))
		memory = amount.Times(mib, BytesPerMiB)
	}
	return GPURequest{Resource: resource, Replicas: RequestsOf(pod, resource).Replicas, MostInOne: MostInOne(pod, resource), MemoryBytes: memory}
}

// MostInOne returns the largest amount of a GPU resource that a container of the pod requests. The kubelet allocates replicas for one container at a time, and
// failRequestsGreaterThanOne of NVIDIA's plugin and the agent refuses more than one of them.
func MostInOne(pod *corev1.Pod, gpu corev1.ResourceName) int64 {
	var most int64
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			most = max(most, ReplicasIn(containers[i].Resources.Requests, gpu))
		}
	}
	return most
}

// Waits reports whether a pod requests a GPU resource and waits for a machine. Pods that are nominated for a node do not wait.
func Waits(pod *corev1.Pod) bool {
	_, gpu := GPUResource(pod)
	return gpu && karpenter.IsProvisionable(pod)
}

// Bound reports whether a change binds a pod that requests a GPU resource to a node.
func Bound(before, after *corev1.Pod) bool {
	if before.Spec.NodeName != "" || after.Spec.NodeName == "" || !IsWorkload(after) {
		return false
	}
	_, gpu := GPUResource(after)
	return gpu
}

// SlotSizes returns the sizes in MiB of the slots that a pod requests, one for each slot, in ascending order. It returns none for a request that no
// machine could serve.
func SlotSizes(pod *corev1.Pod) []int64 {
	if !claims.RequestsGPU(&pod.Spec) {
		return nil
	}
	requested := PodRequests(pod)
	if n, _ := SlotsIn(requested); n == 0 || n > MaxReplicasPerGPU {
		return nil
	}
	var sizes []int64
	for name := range requested {
		if size, ok := nodecontract.ParseSlotResource(string(name)); ok {
			sizes = append(sizes, slices.Repeat([]int64{size}, int(ValueOf(requested, name)))...)
		}
	}
	slices.Sort(sizes)
	return sizes
}
