package facts

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/karpenter"
)

// ExclusiveUsers returns the pod that may use each exclusive PersistentVolumeClaim, by namespace and name of the claim: the bound pod, or else the one of the
// waiting pods that the scheduler would bind first. As in the scheduler, a pod that is being deleted uses its claims until it is gone.
func (x *Index) ExclusiveUsers() map[string]*corev1.Pod {
	users := map[string]*corev1.Pod{}
	note := func(pod *corev1.Pod) {
		for i := range pod.Spec.Volumes {
			name, ok := ClaimName(pod, &pod.Spec.Volumes[i])
			if !ok {
				continue
			}
			key := pod.Namespace + "/" + name
			if claim := x.volumeClaims.get(key); claim == nil || !IsExclusive(claim) {
				continue
			}
			if other := users[key]; other == nil || usesFirst(pod, other) < 0 {
				users[key] = pod
			}
		}
	}
	for _, s := range x.nodes.all() {
		for _, pod := range s.Pods {
			note(pod)
		}
	}
	for _, pod := range x.pending.all() {
		if pod.Status.NominatedNodeName != "" && pod.DeletionTimestamp.IsZero() || karpenter.IsProvisionable(pod) && ExcessWhy(pod) == "" {
			note(pod)
		}
	}
	return users
}

// usesFirst orders the users of an exclusive PersistentVolumeClaim: bound pods, nominated pods, and then as the scheduler takes pods from its queue.
func usesFirst(a, b *corev1.Pod) int {
	stage := func(pod *corev1.Pod) int {
		switch {
		case pod.Spec.NodeName != "":
			return 0
		case pod.Status.NominatedNodeName != "":
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(stage(a), stage(b)), cmp.Compare(schedulinghelper.PodPriority(b), schedulinghelper.PodPriority(a)), Older(a, b))
}
