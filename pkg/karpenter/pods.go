// Package karpenter is the only package that imports more of Karpenter than its API types and its requirement algebra, so that changes for a new version of
// Karpenter stay here.
package karpenter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// IsProvisionable reports whether a pod needs a new machine: the scheduler found no node for it, and it is not being deleted, not a DaemonSet or mirror
// pod, and not nominated for a node like a preempting pod. Gated pods have another reason in their condition, and do not count.
func IsProvisionable(pod *corev1.Pod) bool {
	return podutils.IsProvisionable(pod) && !podutils.IsTerminating(pod) && !podutils.IsTerminal(pod)
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
