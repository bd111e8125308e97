package snapshot

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Seats returns the pending pods to nominate for the Node of a machine when it starts to take pods: for each shape as many as the NodeClaim was launched
// for, the oldest first. Pods that run on the Node or are nominated for it count as part of that number. pods are the pending pods and those on the Node. written has the
// nodes of recent nominations that pods may not show yet. If all pending pods have the same shape, Seats returns none, because any of them may go to any
// node. It also returns none for pods with an affinity that selects namespaces by labels, because their shape is unknown without the namespaces.
func Seats(m *Machine, pods []*corev1.Pod, written map[types.UID]string) []Nomination {
	planned := countsOf(m.Claim.Annotations[v1alpha1.PlannedPodsAnnotation])
	if m.Node == nil || len(planned) == 0 {
		return nil
	}
	shapes := (&Cluster{}).shapes()
	var waiting []*corev1.Pod
	kinds := map[string]bool{}
	for _, pod := range pods {
		node := cmp.Or(pod.Spec.NodeName, pod.Status.NominatedNodeName, written[pod.UID])
		switch {
		case node == m.Node.Name:
			if IsWorkload(pod) && mentionsGPU(pod) {
				planned[shapes.of(pod).short]--
			}
		case Waits(pod) && node == "":
			waiting = append(waiting, pod)
		}
		if len(kinds) < 2 && pod.Spec.NodeName == "" && mentionsGPU(pod) { // It takes time to tell shapes apart, and thousands of pods may wait.
			kinds[shapes.of(pod).short] = true
		}
	}
	if len(kinds) < 2 {
		return nil
	}
	slices.SortFunc(waiting, func(a, b *corev1.Pod) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return comparePods(a, b)
	})
	left := 0
	for _, n := range planned {
		left += max(0, n)
	}
	var seats []Nomination
	for _, pod := range waiting {
		if left == 0 {
			break
		}
		if key := shapes.of(pod).short; planned[key] > 0 {
			planned[key]--
			left--
			seats = append(seats, Nomination{pod, m.Node.Name})
		}
	}
	return seats
}
