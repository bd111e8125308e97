// Package karpenter is the only package that imports more of Karpenter than its API types and its requirement algebra, so that changes for a new version of
// Karpenter stay here.
package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// IsProvisionable reports whether a pod needs a new machine: the scheduler found no node for it, and it is not being deleted, not a DaemonSet or mirror
// pod, and not nominated for a node like a preempting pod. Gated pods have another reason in their condition, and do not count.
func IsProvisionable(pod *corev1.Pod) bool {
	return podutils.IsProvisionable(unschedulable(pod)) && !podutils.IsTerminating(pod) && !podutils.IsTerminal(pod)
}

// unschedulable returns a pod of a PodGroup that the scheduler reports with an error as one for which it found no node. With dynamic resource allocation, as by default, the scheduler of
// Kubernetes 1.37 ends with an error for each group without room (DynamicResources.PodGroupPostFilter: "not found").
func unschedulable(pod *corev1.Pod) *corev1.Pod {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonSchedulerError
	})
	if i < 0 || pod.Spec.SchedulingGroup == nil {
		return pod
	}
	tried := *pod
	tried.Status.Conditions = slices.Clone(pod.Status.Conditions)
	tried.Status.Conditions[i].Reason = corev1.PodReasonUnschedulable
	return &tried
}

// IsReschedulable reports whether a pod would need another node if its node were deleted. A node without such pods is empty.
func IsReschedulable(pod *corev1.Pod) bool { return podutils.IsReschedulable(pod) }

// IsTerminal reports whether a pod has ended and holds no resources.
func IsTerminal(pod *corev1.Pod) bool { return podutils.IsTerminal(pod) }

// IsDaemon reports whether a pod is tied to its node: it is a DaemonSet or mirror pod.
func IsDaemon(pod *corev1.Pod) bool {
	return podutils.IsOwnedByDaemonSet(pod) || podutils.IsOwnedByNode(pod)
}

// IsDisruptable reports whether a pod's karpenter.sh/do-not-disrupt annotation, which may have a grace period, allows disruption.
func IsDisruptable(pod *corev1.Pod, clk clock.Clock) bool {
	return podutils.IsDisruptable(pod, clk, nil)
}

// IsEvicted reports whether draining a node would evict the pod. Other pods end with their node.
func IsEvicted(pod *corev1.Pod, clk clock.Clock) bool {
	return podutils.IsDrainable(pod, clk) && !podutils.IsTerminating(pod)
}
