package karpenter

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/utils/disruption"
)

// EvictionCost is how much it counts to evict the pod, by controller.kubernetes.io/pod-deletion-cost and its priority, where 1 is a pod that says
// nothing: from -10 to 10.
func EvictionCost(pod *corev1.Pod) float64 {
	return disruption.EvictionCost(context.Background(), pod) //nolint:forbidigo // The context carries a logger for an annotation that the API server refuses.
}
