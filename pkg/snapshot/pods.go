package snapshot

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
)

// waitingClass is a set of waiting pods that the scheduler cannot tell apart.
type waitingClass struct {
	*shape
	pods []*corev1.Pod
	// volumes are what the pods' volumes ask of a node; nil when they have none.
	volumes *volumes
	// found says which selections find the pods.
	found []int
}

// moving are the pods that will wait for a place soon, since their machine is leaving. When it goes they come back under other names, and they do
// not count twice: a pod that is being deleted is not moving any more, unless its owner makes no other one before it is gone.
type moving map[*corev1.Pod]bool

// movingOf are those of the machines that are leaving and go.
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

// waiting are the pods that wait for a GPU resource or are moving, in classes, in a stable order, and those that wait for their turn.
func (c *Cluster) waiting(shapes *shapes, storage *storage, nominating nominating, moving moving) (planned []*waitingClass, later []*corev1.Pod) {
	var pods []waitingPod
	for i := range c.Pods {
		pod := &c.Pods[i]
		if !moving[pod] && (!mentionsGPU(pod) || !nominating.waits(pod)) {
			continue
		}
		if s := shapes.of(pod); s.gpu != "" {
			pods = append(pods, waitingPod{pod, s})
		}
	}
	pods, later = c.inTurn(pods, moving)
	// Only now are all selections known, those of the last pod too.
	byKey := map[string]*waitingClass{}
	for _, p := range pods {
		found := shapes.selections.of(p.pod)
		v := storage.of(p.pod)
		key := classKey(p.shape, found, v)
		if byKey[key] == nil {
			byKey[key] = &waitingClass{shape: p.shape, volumes: v, found: found}
		}
		byKey[key].pods = append(byKey[key].pods, p.pod)
	}
	classes := make([]*waitingClass, 0, len(byKey))
	for _, key := range sortedKeys(byKey) {
		class := byKey[key]
		slices.SortFunc(class.pods, comparePods)
		classes = append(classes, class)
	}
	return classes, later
}

func classKey(s *shape, found []int, v *volumes) string {
	key := make([]byte, 0, len(s.key)+4*len(found)+1)
	key = append(append(key, s.key...), 0)
	for _, i := range found {
		key = binary.BigEndian.AppendUint32(key, uint32(i))
	}
	key = append(key, 0)
	return string(key) + v.key()
}

// mentionsGPU says whether a container of the pod asks for a GPU resource at all, which is quicker to see than how many the pod needs.
func mentionsGPU(pod *corev1.Pod) bool {
	asks := func(ctr corev1.Container) bool {
		_, shared := ctr.Resources.Requests[v1alpha1.ResourceGPUShared]
		_, whole := ctr.Resources.Requests[v1alpha1.ResourceGPU]
		return shared || whole
	}
	return slices.ContainsFunc(pod.Spec.Containers, asks) || slices.ContainsFunc(pod.Spec.InitContainers, asks)
}

// gpuResource is the GPU resource that a pod asks for; the renamed one where it asks for both.
func gpuResource(pod *corev1.Pod) (corev1.ResourceName, bool) {
	if !mentionsGPU(pod) {
		return "", false
	}
	for _, gpu := range []corev1.ResourceName{v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU} {
		if requests(pod, gpu).Replicas > 0 {
			return gpu, true
		}
	}
	return "", false
}

// PodName is the name of a pod as the planner uses it.
func PodName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// comparePods orders pods by their names as the planner uses them.
func comparePods(a, b *corev1.Pod) int {
	if a.Namespace == b.Namespace {
		return strings.Compare(a.Name, b.Name)
	}
	return strings.Compare(PodName(a), PodName(b))
}

// unsupported names the scheduling rule of a pod that is not planned for yet; "" when there is none.
func unsupported(pod *corev1.Pod) string {
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resource claims"
	}
	return ""
}

// Waits says whether a pod waits for a GPU resource that no node has for it, and that no node is to have.
func Waits(pod *corev1.Pod) bool {
	_, gpu := gpuResource(pod)
	return gpu && karpenter.IsProvisionable(pod)
}

// StartTime is when the kubelet began to run a pod, or when it was created where that is not known.
func StartTime(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// IsForeign says whether a pod asks for no GPU and would come back elsewhere if its node went.
func IsForeign(pod *corev1.Pod) bool { return !mentionsGPU(pod) && karpenter.IsReschedulable(pod) }
