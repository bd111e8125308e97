package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

func (v *View) isStarting() bool {
	return slices.ContainsFunc(v.Machines, func(m records.Machine) bool { return !v.Decided(&m) })
}

// ReadAhead returns what the view was made with.
func (v *View) ReadAhead() *facts.ReadAhead { return &v.cluster.ReadAhead }

// Unplanned returns the untried pods of the view that have no place in the plan in progress.
func (v *View) Unplanned() sets.Set[types.UID] {
	pods := sets.New[types.UID]()
	for _, pod := range v.Pods {
		if facts.Untried(pod) && !v.cluster.ReadAhead.Planned.Has(pod.UID) {
			pods.Insert(pod.UID)
		}
	}
	return pods
}

// droppedPods returns the untried pods that are nominated for one of Karve's nodes, although the view does not include them.
func (v *View) droppedPods() []*corev1.Pod {
	var pods []*corev1.Pod
	nominating := newNominating(v.cluster, v.Machines)
	for _, pod := range v.cluster.Indexed().Pending() {
		if node := pod.Status.NominatedNodeName; node != "" && facts.Untried(pod) && v.Pods[facts.PodName(pod)] == nil && nominating.isFreeToPlan(node) {
			pods = append(pods, pod)
		}
	}
	return pods
}
