package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Seating assigns pending pods, from one read of the cluster, to Nodes that start to accept pods. Thousands of pods may wait for hundreds of Nodes, so
// it examines each pod only once. It is not safe for concurrent use.
type Seating struct {
	shapes *shapes
	// unsorted has the pods without a Node and a nomination, by the turn of their shape. waiting has the same pods by the key of their shape, the oldest
	// first. It is nil until it is needed, because keys take longer.
	unsorted, waiting map[string][]*corev1.Pod
	// podsByNode has the pods that are on a Node or nominated for it, by the name of the Node.
	podsByNode map[string][]*corev1.Pod
	// pending has the pods of waiting by UID.
	pending map[types.UID]*corev1.Pod
	// alike reports whether all pending pods have the same shape.
	alike bool
}

// NewSeating returns the seating of pods, which must include all pending ones. planned reports whether an untried pod has a place in the plan in progress.
func NewSeating(pods []*corev1.Pod, planned func(*corev1.Pod) bool) *Seating {
	s := &Seating{shapes: newShapes((&facts.Cluster{})), unsorted: map[string][]*corev1.Pod{}, podsByNode: map[string][]*corev1.Pod{}, pending: map[types.UID]*corev1.Pod{}}
	kinds := map[string]bool{}
	for _, pod := range pods {
		if !claims.RequestsGPU(&pod.Spec) {
			continue
		}
		if node := pod.Spec.NodeName; node != "" {
			s.podsByNode[node] = append(s.podsByNode[node], pod)
			continue
		}
		shape := s.shapes.sketchOf(pod).queueText
		kinds[shape] = true
		if node := pod.Status.NominatedNodeName; node != "" {
			s.podsByNode[node] = append(s.podsByNode[node], pod)
		} else if facts.Waits(pod) || facts.Untried(pod) && planned(pod) {
			s.unsorted[shape] = append(s.unsorted[shape], pod)
			s.pending[pod.UID] = pod
		}
	}
	s.alike = len(kinds) < 2
	return s
}

func (s *Seating) sort() {
	s.waiting = map[string][]*corev1.Pod{}
	for _, pods := range s.unsorted {
		shape := s.shapes.shapeOf(pods[0]).short
		s.waiting[shape] = append(s.waiting[shape], pods...)
	}
	for _, of := range s.waiting {
		slices.SortFunc(of, facts.Older)
	}
}

// Seats returns the pending pods to nominate for the Node of a machine when it starts to accept pods. For each shape it returns as many as the
// NodeClaim was launched for, the oldest first. Pods on the Node and pods that are nominated for it count towards that number. more has pods on the
// Node that the seating lacks. written has the nodes of recent nominations that the pending pods may not show yet. If all pending pods have the same
// shape, Seats returns none, because any of them may go to any node. It also returns none for pods with an affinity that selects namespaces by labels,
// because their shape is unknown without the namespaces.
func (s *Seating) Seats(m *records.Machine, more []*corev1.Pod, written map[types.UID]string) []Nomination {
	planned := countsOf(m.Claim.Annotations[v1alpha1.PlannedPodsAnnotation])
	if m.Node == nil || len(planned) == 0 || s.alike {
		return nil
	}
	if s.waiting == nil {
		s.sort()
	}
	seated := func(pod *corev1.Pod) {
		if facts.IsWorkload(pod) && claims.RequestsGPU(&pod.Spec) {
			planned[s.shapes.shapeOf(pod).short]--
		}
	}
	for _, pod := range more {
		seated(pod)
	}
	for _, pod := range s.podsByNode[m.Node.Name] {
		seated(pod)
	}
	for uid, node := range written {
		if pod := s.pending[uid]; pod != nil && node == m.Node.Name {
			seated(pod)
		}
	}
	var seats []Nomination
	for shape, left := range planned {
		for _, pod := range s.waiting[shape] {
			if left <= 0 {
				break
			}
			if written[pod.UID] == "" {
				left--
				seats = append(seats, Nomination{pod, m.Node.Name})
			}
		}
	}
	slices.SortFunc(seats, func(a, b Nomination) int { return facts.Older(a.Pod, b.Pod) })
	return seats
}
