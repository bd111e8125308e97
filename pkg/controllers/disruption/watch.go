package disruption

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot/facts"
)

// podLeftOrCame selects events of pods that can make a node idle or busy.
func podLeftOrCame() predicate.Predicate {
	bound := func(o client.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && pod.Spec.NodeName != "" && !karpenter.IsDaemon(pod)
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return bound(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return bound(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*corev1.Pod)
			after, okAfter := e.ObjectNew.(*corev1.Pod)
			return okBefore && okAfter && bound(after) &&
				(before.Spec.NodeName != after.Spec.NodeName || karpenter.IsTerminal(before) != karpenter.IsTerminal(after))
		},
	}
}

func ours() predicate.Predicate {
	return predicate.And(
		predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.GPUNodeClassLabel] != "" }),
		predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}, stateChanged()),
	)
}

// claimsOfOurs selects NodeClaims of Karve.
func claimsOfOurs() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		claim, ok := o.(*karpv1.NodeClaim)
		return ok && facts.IsOurClaim(claim)
	})
}

// stateChanged selects updates of a Node's taints, and those that can make a machine unhealthy or healthy. It ignores heartbeats of conditions.
func stateChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*corev1.Node)
		after, okAfter := e.ObjectNew.(*corev1.Node)
		return okBefore && okAfter &&
			(len(before.Spec.Taints) != len(after.Spec.Taints) || statuses(before) != statuses(after) || exposed(before) != exposed(after))
	}}
}

// becameUnhealthy selects updates after which a Node is no longer ready or exposes fewer replicas.
func becameUnhealthy() predicate.Predicate {
	return onUpdate(func(before, after client.Object) bool {
		was, ok := before.(*corev1.Node)
		is, ok2 := after.(*corev1.Node)
		return ok && ok2 && (disruption.NotReady(is) && !disruption.NotReady(was) || exposed(is) < exposed(was))
	})
}

// beganToGo selects updates after which a NodeClaim is being deleted.
func beganToGo() predicate.Predicate {
	return onUpdate(func(before, after client.Object) bool {
		return before.GetDeletionTimestamp().IsZero() && !after.GetDeletionTimestamp().IsZero()
	})
}

// onUpdate selects some updates, and no other events.
func onUpdate(update func(before, after client.Object) bool) predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return update(e.ObjectOld, e.ObjectNew) },
	}
}

// exposed returns how many of the replicas that were promised for a Node are allocatable there.
func exposed(n *corev1.Node) int64 {
	return amount.Value(n.Status.Allocatable[facts.PromiseOf(n.Annotations).Resource])
}

// statuses returns the types, statuses and reasons of a Node's conditions.
func statuses(n *corev1.Node) string {
	var all strings.Builder
	for _, c := range n.Status.Conditions {
		fmt.Fprintf(&all, "%s=%s(%s) ", c.Type, c.Status, c.Reason)
	}
	return all.String()
}
