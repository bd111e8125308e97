package karpenter

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/utils/disruption"
)

// EvictionCost returns the cost of evicting the pod, from -10 to 10. It depends on controller.kubernetes.io/pod-deletion-cost and on the priority. A pod
// without either costs 1.
func EvictionCost(pod *corev1.Pod) float64 {
	return disruption.EvictionCost(context.Background(), pod) //nolint:forbidigo // The context carries a logger for an annotation that the API server refuses.
}
