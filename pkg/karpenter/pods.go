// Package karpenter is the only place that imports more of Karpenter than its API types and its requirement algebra, so that a new
// version of Karpenter is met here.
package karpenter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// IsProvisionable says whether a pod waits for a machine: the scheduler has found no place for it, and it is not a DaemonSet's, a
// mirror pod, nominated for a node as one that preempts others is, or already leaving. Gated pods have another reason and do not count.
func IsProvisionable(pod *corev1.Pod) bool {
	return podutils.IsProvisionable(pod) && !podutils.IsTerminating(pod) && !podutils.IsTerminal(pod)
}

// IsReschedulable says whether a pod would need another place if its node went away; a node without such pods is empty.
func IsReschedulable(pod *corev1.Pod) bool { return podutils.IsReschedulable(pod) }

// IsTerminal says whether a pod has ended and holds nothing any more.
func IsTerminal(pod *corev1.Pod) bool { return podutils.IsTerminal(pod) }

// IsDaemon says whether a pod belongs to its node rather than to a workload: a DaemonSet's or a mirror pod.
func IsDaemon(pod *corev1.Pod) bool {
	return podutils.IsOwnedByDaemonSet(pod) || podutils.IsOwnedByNode(pod)
}

// IsDisruptable says whether a pod's karpenter.sh/do-not-disrupt annotation, also in its form with a grace period, lets it go.
func IsDisruptable(pod *corev1.Pod, clk clock.Clock) bool {
	return podutils.IsDisruptable(pod, clk, nil)
}

// IsEvicted says whether draining a node would evict the pod; the others end with their node.
func IsEvicted(pod *corev1.Pod, clk clock.Clock) bool {
	return podutils.IsDrainable(pod, clk) && !podutils.IsTerminating(pod)
}
