package karpenter

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/utils/disruption"
)

// withoutGates carries Karpenter's options at their defaults, which its functions read from the context, and no logger.
var withoutGates = options.ToContext(context.Background(), &options.Options{}) //nolint:forbidigo // It never ends.

// EvictionCost returns the cost of evicting the pod, from -10 to 10. It depends on karpenter.sh/disruption-cost, without it on
// controller.kubernetes.io/pod-deletion-cost, and on the priority. A pod without any costs 1.
func EvictionCost(pod *corev1.Pod) float64 { return disruption.EvictionCost(withoutGates, pod) }
