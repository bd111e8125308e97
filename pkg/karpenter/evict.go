package karpenter

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/utils/pdb"
)

// Evictions says which pods can be evicted at present, as Karpenter judges it.
type Evictions struct {
	limits  pdb.Limits
	budgets []policyv1.PodDisruptionBudget
	clock   clock.Clock
}

// NewEvictions reads the PodDisruptionBudgets.
func NewEvictions(ctx context.Context, c client.Client, clk clock.Clock) (Evictions, error) {
	limits, err := pdb.NewLimits(ctx, c)
	if err != nil {
		return Evictions{}, fmt.Errorf("listing PodDisruptionBudgets: %w", err)
	}
	list := &policyv1.PodDisruptionBudgetList{}
	if err := c.List(ctx, list); err != nil {
		return Evictions{}, fmt.Errorf("listing PodDisruptionBudgets: %w", err)
	}
	return Evictions{limits: limits, budgets: list.Items, clock: clk}, nil
}

// Budgets are the PodDisruptionBudgets, as namespace/name, of the pods that draining a node would evict.
func (e Evictions) Budgets(pods []*corev1.Pod) []string {
	var names []string
	for i := range e.budgets {
		b := &e.budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // The API server accepts none that cannot be read.
		}
		if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.Namespace == b.Namespace && selector.Matches(labels.Set(pod.Labels)) && IsEvicted(pod, e.clock)
		}) {
			names = append(names, b.Namespace+"/"+b.Name)
		}
	}
	return names
}

// Evict has the API server evict a pod, which asks its PodDisruptionBudgets: when they do not allow it at present the error says that there are too many requests, and
// when the pod is gone or another one of its name is there, that it is not found or in conflict.
func Evict(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	return c.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{ //nolint:wrapcheck // Callers tell the errors apart.
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
}

// Blocker says what keeps a node with the pods from draining; "" when nothing does. Deleting a NodeClaim cannot be undone, so this is asked
// before.
func (e Evictions) Blocker(pods []*corev1.Pod) string {
	for _, pod := range pods {
		if IsEvicted(pod, e.clock) && !IsDisruptable(pod, e.clock) {
			return fmt.Sprintf("pod %s/%s carries karpenter.sh/do-not-disrupt", pod.Namespace, pod.Name)
		}
		if budgets, ok := e.limits.CanEvictPods([]*corev1.Pod{pod}, e.clock, nil); !ok {
			names := make([]string, 0, len(budgets))
			for _, b := range budgets {
				names = append(names, b.String())
			}
			return fmt.Sprintf("pod %s/%s may not be evicted: PodDisruptionBudget %s", pod.Namespace, pod.Name, strings.Join(names, " and "))
		}
	}
	return ""
}
