package snapshot

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
)

// waitingClass is a set of pods to plan for that the scheduler treats alike.
type waitingClass struct {
	*shape
	pods []*corev1.Pod
	// volumes are what the pods' volumes require of a node. It is nil if they have none.
	volumes *volumes
	// found has the indices of the selections that match the pods.
	found []int
}

// moving holds the running pods that will soon be pending, because their machine is leaving. Their replacements have other names. To avoid counting a pod
// twice, a pod that is being deleted is not moving, unless its owner replaces it only after it is gone.
type moving map[*corev1.Pod]bool

// movingOf returns the moving pods of machines that are leaving and for which goes returns true.
func movingOf(machines []Machine, goes func(*Machine) bool) moving {
	m := moving{}
	for i := range machines {
		if !machines[i].Leaving() || !goes(&machines[i]) {
			continue
		}
		for _, pod := range machines[i].Moving() {
			m[pod] = true
		}
	}
	return m
}

// waiting returns the classes of the pods that are pending for a GPU resource or in moving, in a stable order. later has the pods that must wait for
// their turn.
func (c *Cluster) waiting(shapes *shapes, storage *storage, nominating *nominating, moving moving) (planned []*waitingClass, later []*corev1.Pod) {
	asking := slices.DeleteFunc(c.Indexed().Pending(), func(pod *corev1.Pod) bool { return !claims.RequestsGPU(&pod.Spec) || !nominating.waits(pod) })
	asking = slices.AppendSeq(asking, maps.Keys(moving))
	slices.SortFunc(asking, comparePods)
	var pods []waitingPod
	for _, pod := range asking {
		c.visit("Pod", pod)
		if s := shapes.turn(pod); s.gpu != "" {
			pods = append(pods, waitingPod{pod, s})
		}
	}
	pods, later = c.fairShare(pods, moving)
	for _, p := range pods {
		c.visit("Pod", p.pod)
		shapes.of(p.pod)
	}
	// All selections are known only now, after the last pod.
	byKey := map[classKey]*waitingClass{}
	for _, p := range pods {
		c.visit("Pod", p.pod)
		found := shapes.selections.of(p.pod)
		v := storage.of(p.pod)
		key := classKeyOf(p.shape, found, v)
		if byKey[key] == nil {
			byKey[key] = &waitingClass{shape: p.shape, volumes: v, found: found}
		}
		byKey[key].pods = append(byKey[key].pods, p.pod)
	}
	keys := slices.SortedFunc(maps.Keys(byKey), func(a, b classKey) int {
		return cmp.Or(strings.Compare(byKey[a].key, byKey[b].key), strings.Compare(a.found, b.found), strings.Compare(a.volumes, b.volumes))
	})
	classes := make([]*waitingClass, 0, len(byKey))
	for _, key := range keys {
		class := byKey[key]
		slices.SortFunc(class.pods, comparePods)
		classes = append(classes, class)
	}
	return classes, later
}

// classKey identifies a class: its shape, the selections that match its pods, and what their volumes require of a node.
type classKey struct {
	shape          [sha256.Size]byte
	found, volumes string
}

func classKeyOf(s *shape, found []int, v *volumes) classKey {
	numbers := make([]byte, 0, 4*len(found))
	for _, i := range found {
		numbers = binary.BigEndian.AppendUint32(numbers, uint32(i))
	}
	return classKey{s.sum, string(numbers), v.key()}
}

// gpuResource returns the GPU resource that a pod requests. It returns false if the pod requests none. If it requests several, it is that of renamed
// replicas, or else that of whole GPUs, or else the first.
func gpuResource(pod *corev1.Pod) (corev1.ResourceName, bool) {
	if !claims.RequestsGPU(&pod.Spec) {
		return "", false
	}
	for _, gpu := range []corev1.ResourceName{v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU} {
		if requests(pod, gpu).Replicas > 0 {
			return gpu, true
		}
	}
	requested := PodRequests(pod)
	for _, name := range slices.Sorted(maps.Keys(requested)) {
		if nodecontract.IsGPUResource(string(name)) && valueOf(requested, name) > 0 {
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
	resource, ok := gpuResource(pod)
	if !ok {
		return GPURequest{}
	}
	memory, _ := gpuMemory(pod)
	if isSlot(resource) {
		_, mib := slotsIn(PodRequests(pod))
		memory = amount.Times(mib, bytesPerMiB)
	}
	return GPURequest{Resource: resource, Replicas: requests(pod, resource).Replicas, MostInOne: mostInOne(pod, resource), MemoryBytes: memory}
}

// mostInOne returns the largest amount of a GPU resource that a container of the pod requests. The kubelet allocates replicas for one container at a time, and
// failRequestsGreaterThanOne of NVIDIA's plugin and the agent refuses more than one of them.
func mostInOne(pod *corev1.Pod, gpu corev1.ResourceName) int64 {
	var most int64
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			most = max(most, replicasIn(containers[i].Resources.Requests, gpu))
		}
	}
	return most
}

// PodName returns the name of a pod in the planner.
func PodName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// comparePods orders pods by their names in the planner.
func comparePods(a, b *corev1.Pod) int {
	if a.Namespace == b.Namespace {
		return strings.Compare(a.Name, b.Name)
	}
	return strings.Compare(PodName(a), PodName(b))
}

// unsupported returns a scheduling rule of the pod that Karve does not support yet, or "" if there is none.
func unsupported(pod *corev1.Pod) string {
	if len(pod.Spec.ResourceClaims) > 0 && claims.Text(pod) == "" {
		return "resource claims"
	}
	return ""
}

// CutAnnotation says which parts of a pod are too large to be kept, and were left out. Only objects in memory have it.
const CutAnnotation = v1alpha1.Group + "/too-large"

// TooLarge returns why Karve does not plan for a pod of which parts were left out, or "" if the pod is complete.
func TooLarge(pod *corev1.Pod) string {
	cut, is := pod.Annotations[CutAnnotation]
	if !is {
		return ""
	}
	return "has " + cut + ", which Karve does not read: make them smaller"
}

// Waits reports whether a pod requests a GPU resource and waits for a machine. Pods that are nominated for a node do not wait.
func Waits(pod *corev1.Pod) bool {
	_, gpu := gpuResource(pod)
	return gpu && karpenter.IsProvisionable(pod)
}

// Bound reports whether a change binds a pod that requests a GPU resource to a node.
func Bound(before, after *corev1.Pod) bool {
	if before.Spec.NodeName != "" || after.Spec.NodeName == "" || !IsWorkload(after) {
		return false
	}
	_, gpu := gpuResource(after)
	return gpu
}

// StartTime returns when the kubelet started a pod. If that is unknown, it returns when the pod was created.
func StartTime(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// IsForeign reports whether a pod requests no GPU and would be recreated elsewhere if its node were deleted.
func IsForeign(pod *corev1.Pod) bool {
	return !claims.RequestsGPU(&pod.Spec) && karpenter.IsReschedulable(pod)
}
