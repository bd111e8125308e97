package usage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/usage"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// maxNamed is the largest number of pods that an event names.
const maxNamed = 5

// act executes an action, and adds its report to reported.
func (c *Controller) act(ctx context.Context, a action, reported map[subject]string) error {
	switch a.step {
	case report:
		var pods []string
		for _, pod := range a.machine.Holders() {
			pods = append(pods, pod.Namespace+"/"+pod.Name)
		}
		c.recordOnce(reported, a, a.machine.Node, corev1.EventTypeNormal, "Unused", fmt.Sprintf("nobody has used its GPUs for %s, at $%s an hour; its replicas are held by %s",
			words.Age(a.unused), words.USD(a.machine.Promise.MicroUSDPerHour), words.Named(pods, maxNamed)), "")
	case unreadable:
		c.recordOnce(reported, a, a.machine.Node, corev1.EventTypeWarning, "UsageUnreadable", "what karve-node says of its use is not understood and counts for nothing: "+a.reason, a.reason)
	case refuse:
		c.recordOnce(reported, a, a.pod, corev1.EventTypeWarning, "EvictWhenUnusedInvalid", a.reason+"; the pod is not evicted", a.reason)
	case blocked:
		c.recordOnce(reported, a, a.pod, corev1.EventTypeNormal, "UnusedButKept", fmt.Sprintf("has not used its GPU for %s, and is kept: %s", words.Age(a.unused), a.reason), a.reason)
	case evict:
		return c.evict(ctx, a, reported)
	}
	return nil
}

// recordOnce records an event unless the same was said about the object before.
func (c *Controller) recordOnce(reported map[subject]string, a action, about client.Object, eventType, reason, note, said string) {
	s := subject{about.GetUID(), a.step}
	reported[s] = said
	if before, ok := c.reported[s]; !ok || before != said {
		c.Recorder.Eventf(about, nil, eventType, reason, "CheckUse", "%s", plain.Shorten(note, plain.MaxNote))
	}
}

// evict reads the pod and its Node from the API server once more, and then evicts the pod, which respects PodDisruptionBudgets.
func (c *Controller) evict(ctx context.Context, a action, reported map[subject]string) error {
	node, pod := &corev1.Node{}, &corev1.Pod{}
	if err := c.Gatherer.Live.Get(ctx, client.ObjectKeyFromObject(a.machine.Node), node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := c.Gatherer.Live.Get(ctx, client.ObjectKeyFromObject(a.pod), pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	report, err := usage.Of(&records.Machine{Node: node})
	if err != nil || pod.UID != a.pod.UID || pod.Spec.NodeName != node.Name {
		return nil //nolint:nilerr // The next look tells of it.
	}
	late, d, err := overdue(pod, report, c.Clock.Now())
	if err != nil || !late {
		return nil //nolint:nilerr // The next look tells of it.
	}
	err = karpenter.Evict(ctx, c.Client, pod)
	switch {
	case apierrors.IsTooManyRequests(err):
		a.step, a.reason = blocked, "a PodDisruptionBudget allows no eviction at present"
		return c.act(ctx, a, reported)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil // The pod is gone, or another one has its name.
	case err != nil:
		return fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	c.Metrics.UnusedEvictions.WithLabelValues(a.machine.Pool()).Inc()
	c.Recorder.Eventf(pod, node, corev1.EventTypeNormal, "EvictedWhenUnused", "Evict", "has not used its GPU for %s and is evicted, as its annotation %s (%s) wants",
		words.Age(d), v1alpha1.EvictWhenUnusedAnnotation, pod.Annotations[v1alpha1.EvictWhenUnusedAnnotation])
	log.FromContext(ctx).Info("Evicted a pod that did not use its GPU", "pod", klog.KObj(pod), "node", klog.KObj(node), "unused", d.String())
	return nil
}
