package quote

import (
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Anew returns the cluster as if Karve's machines did not exist and their pods were pending. A plan for it shows what all pods would cost if machines
// were chosen for them now. It does not change the cluster. Pods that no plan would move, such as those of DaemonSets, are removed with their machines.
func Anew(c *facts.Cluster) *facts.Cluster {
	changes := facts.Changes{Pods: map[string]*corev1.Pod{}, Nodes: map[string]*corev1.Node{}, NodeClaims: map[string]*karpv1.NodeClaim{}}
	machines := records.Machines(c)
	for i := range machines {
		m := &machines[i]
		changes.NodeClaims[m.Claim.Name] = nil
		if m.Node == nil {
			continue
		}
		changes.Nodes[m.Node.Name] = nil
		for _, pod := range m.Pods {
			changes.Pods[facts.PodName(pod)] = nil
		}
		for _, pod := range m.Moving() {
			changes.Pods[facts.PodName(pod)] = waiting(pod)
		}
	}
	anew := *c
	anew.Generation, anew.NodeClasses = 0, records.Vacated(c)
	anew.Index, _ = c.Indexed().With(changes)
	return &anew
}

// waiting returns the pod as if the scheduler had found no node for it.
func waiting(pod *corev1.Pod) *corev1.Pod {
	w := *pod
	w.Spec.NodeName = ""
	w.Status = corev1.PodStatus{
		Phase:      corev1.PodPending,
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
	}
	return &w
}
