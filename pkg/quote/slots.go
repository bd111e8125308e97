package quote

import (
	"errors"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
)

const (
	maxSlotSizes   = 8   // as many as the API allows
	slotSizeStep   = 256 // MiB, the smallest size that the API allows
	bytesPerMiB    = 1 << 20
	statesNoMemory = "no waiting pod states how much device memory it needs: annotate the pods with " + v1alpha1.GPUMemoryAnnotation
)

// memorySlots returns a sharing with the slot sizes that waste least for the device memory that pending pods request.
func memorySlots(c *facts.Cluster, _ v1alpha1.Sharing, _ int32) (v1alpha1.Sharing, error) {
	pods := map[int64]int64{} // by MiB
	for i := range c.Pods {
		if mib := statedMiB(&c.Pods[i]); mib > 0 && c.Pods[i].Spec.NodeName == "" {
			pods[mib]++
		}
	}
	if len(pods) == 0 {
		return v1alpha1.Sharing{}, errors.New(statesNoMemory)
	}
	sharing := &v1alpha1.MemorySharing{}
	for _, mib := range SlotSizes(pods, maxSlotSizes) {
		sharing.Sizes = append(sharing.Sizes, sizeText(mib))
	}
	return v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: sharing}, nil
}

func sizeText(mib int64) string {
	if mib%1024 == 0 {
		return strconv.FormatInt(mib/1024, 10) + "Gi"
	}
	return strconv.FormatInt(mib, 10) + "Mi"
}

// statedMiB returns the device memory in MiB that a pod requests, rounded up to a possible size of slots. It is 0 if the pod requests none.
func statedMiB(pod *corev1.Pod) int64 {
	stated := facts.GPURequestOf(pod).MemoryBytes
	return (stated + slotSizeStep*bytesPerMiB - 1) / (slotSizeStep * bytesPerMiB) * slotSizeStep
}

// SlotSizes returns up to limit sizes, in ascending order, that leave the least total memory unused if each pod has the smallest size that holds its
// memory. pods is the number of pods for each amount, in the unit of the sizes. The sizes are among the amounts.
func SlotSizes(pods map[int64]int64, limit int) []int64 {
	amounts := slices.Sorted(maps.Keys(pods))
	type way struct {
		unused int64
		before int // the index of the next smaller size, or -1 if there is none
	}
	// ways[k][j] is the best way to serve the amounts up to the j-th with k+1 sizes, the largest of which is the j-th amount.
	ways := make([][]way, min(limit, len(amounts)))
	unused := func(above, size int) (sum int64) { // of pods with amounts above one index and up to another
		for i := above + 1; i <= size; i++ {
			sum += pods[amounts[i]] * (amounts[size] - amounts[i])
		}
		return sum
	}
	for k := range ways {
		ways[k] = make([]way, len(amounts))
		for j := range amounts {
			ways[k][j] = way{unused(-1, j), -1}
			for i := range j {
				if k == 0 {
					break
				}
				if sum := ways[k-1][i].unused + unused(i, j); sum < ways[k][j].unused {
					ways[k][j] = way{sum, i}
				}
			}
		}
	}
	var sizes []int64
	for k, j := len(ways)-1, len(amounts)-1; j >= 0; k, j = k-1, ways[k][j].before {
		sizes = append(sizes, amounts[j])
	}
	slices.Reverse(sizes)
	return sizes
}

// rename is another name for the GPU resource of a pod.
type rename struct {
	from, to corev1.ResourceName
	// states is the device memory that the pod should request, if not "".
	states string
}

// renamedPods returns the pods with the resources that of returns. Pods that are bound to a node stay as they are.
func renamedPods(pods []corev1.Pod, of func(*corev1.Pod) (rename, bool)) []corev1.Pod {
	out := slices.Clone(pods)
	for i := range out {
		change, ok := of(&out[i])
		if !ok || out[i].Spec.NodeName != "" {
			continue
		}
		pod := out[i].DeepCopy()
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for j := range containers {
				for _, list := range []corev1.ResourceList{containers[j].Resources.Requests, containers[j].Resources.Limits} {
					if q, ok := list[change.from]; ok {
						delete(list, change.from)
						list[change.to] = q
					}
				}
			}
		}
		if change.states != "" {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.GPUMemoryAnnotation, change.states)
		}
		out[i] = *pod
	}
	return out
}

// inSlots returns the pods with slots in place of a replica of the resource, if they request device memory.
func inSlots(pods []corev1.Pod, replica string, slots nodecontract.Slots) []corev1.Pod {
	return renamedPods(pods, func(pod *corev1.Pod) (rename, bool) {
		mib := statedMiB(pod)
		at, _ := slices.BinarySearch(slots.SizesMiB, mib)
		if r := facts.GPURequestOf(pod); r.Resource != corev1.ResourceName(replica) || r.Replicas != 1 || mib == 0 || at == len(slots.SizesMiB) {
			return rename{}, false
		}
		return rename{from: corev1.ResourceName(replica), to: corev1.ResourceName(nodecontract.SlotResource(slots.SizesMiB[at]))}, true
	})
}

// inReplicas returns the pods with a replica in place of a slot. They request the slot's memory.
func inReplicas(pods []corev1.Pod, replica string) []corev1.Pod {
	return renamedPods(pods, func(pod *corev1.Pod) (rename, bool) {
		sizes := facts.SlotSizes(pod)
		if len(sizes) != 1 {
			return rename{}, false // Each slot would be a replica, and a pod has one.
		}
		states := resource.NewQuantity(sizes[0]*bytesPerMiB, resource.BinarySI).String()
		return rename{corev1.ResourceName(nodecontract.SlotResource(sizes[0])), corev1.ResourceName(replica), states}, true
	})
}
