package karpenter

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/utils/pdb"

	"karve.sh/karve/pkg/words"
)

// Evictions decides which pods can be evicted now, as Karpenter does.
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

// Budgets returns the PodDisruptionBudgets, as namespace/name, of the pods that draining a node would evict.
func (e Evictions) Budgets(pods []*corev1.Pod) []string {
	var names []string
	for i := range e.budgets {
		b := &e.budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // The API server rejects invalid selectors.
		}
		if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.Namespace == b.Namespace && selector.Matches(labels.Set(pod.Labels)) && IsEvicted(pod, e.clock)
		}) {
			names = append(names, b.Namespace+"/"+b.Name)
		}
	}
	return names
}

// Evict evicts a pod through the API server, which checks its PodDisruptionBudgets. The error is TooManyRequests if they do not allow the eviction now,
// NotFound if the pod is gone, and Conflict if another pod has its name.
func Evict(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	return c.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{ //nolint:wrapcheck // Callers tell the errors apart.
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
}

// Blocker returns what keeps a node with the pods from draining, or "" if nothing does. Karve checks it before it deletes a NodeClaim, which cannot be
// undone.
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
			return fmt.Sprintf("pod %s/%s may not be evicted: PodDisruptionBudget %s", pod.Namespace, pod.Name, words.And(names))
		}
	}
	return ""
}
