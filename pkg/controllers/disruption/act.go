package disruption

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
)

func (c *Controller) act(ctx context.Context, s *state, a action, pools map[string]*snapshot.Pool) error {
	now := c.Clock.Now().UTC().Format(time.RFC3339)
	node := a.machine.Node
	if a.step != blocked {
		delete(c.told, node.UID)
	}
	switch a.step {
	case markIdle:
		return c.patch(ctx, node, func(n *corev1.Node) { annotate(n, v1alpha1.IdleSinceAnnotation, now) })
	case keep:
		log.FromContext(ctx).V(1).Info("Keeping node", "node", klog.KObj(node), "reason", a.reason)
		return c.patch(ctx, node, unmark)
	case taint:
		err := c.patch(ctx, node, func(n *corev1.Node) {
			annotate(n, v1alpha1.DisruptingSinceAnnotation, now)
			if !tainted(n) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
			}
		})
		if err == nil {
			log.FromContext(ctx).Info("Tainted an idle node", "node", klog.KObj(node), "idleSince", node.Annotations[v1alpha1.IdleSinceAnnotation])
		}
		return err
	case blocked:
		if c.told[node.UID] != a.reason {
			c.told[node.UID] = a.reason
			c.Recorder.Eventf(node, nil, corev1.EventTypeNormal, "IdleButKept", "Keep", "idle since %s and kept: %s", node.Annotations[v1alpha1.IdleSinceAnnotation], a.reason)
		}
		return nil
	case remove:
		return c.remove(ctx, s, a.machine, pools[a.machine.Pool()])
	}
	return nil
}

func annotate(n *corev1.Node, key, value string) {
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[key] = value
}

// unmark takes every mark of ours off.
func unmark(n *corev1.Node) {
	delete(n.Annotations, v1alpha1.IdleSinceAnnotation)
	delete(n.Annotations, v1alpha1.DisruptingSinceAnnotation)
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.DisruptingTaintKey })
}

// patch changes a Node under an optimistic lock: taints are a list that others write too.
func (c *Controller) patch(ctx context.Context, node *corev1.Node, change func(*corev1.Node)) error {
	changed := node.DeepCopy()
	change(changed)
	err := c.Client.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("marking node %s: %w", node.Name, err)
	}
	return nil
}

// remove looks at the Node and its pods once more, live, and deletes the NodeClaim.
func (c *Controller) remove(ctx context.Context, s *state, m *snapshot.Machine, pool *snapshot.Pool) error {
	live := &corev1.Node{}
	if err := c.Gatherer.Live.Get(ctx, client.ObjectKey{Name: m.Node.Name}, live); err != nil {
		return client.IgnoreNotFound(err)
	}
	pods := &corev1.PodList{}
	if err := c.Gatherer.Live.List(ctx, pods, client.MatchingFields{"spec.nodeName": m.Node.Name}); err != nil {
		return fmt.Errorf("listing the pods of node %s: %w", m.Node.Name, err)
	}
	look := snapshot.Machine{Claim: m.Claim, Node: live, Promise: m.Promise}
	for i := range pods.Items {
		if pod := &pods.Items[i]; !karpenter.IsTerminal(pod) {
			look.Pods = append(look.Pods, pod)
		}
	}
	if reason := s.protects(&look); !look.Empty() || !tainted(live) || reason != "" {
		log.FromContext(ctx).Info("Keeping node after a last look", "node", klog.KObj(live), "pods", len(look.Pods), "reason", reason)
		return c.patch(ctx, live, unmark)
	}
	uid := m.Claim.UID
	if err := c.Client.Delete(ctx, m.Claim, client.Preconditions{UID: &uid}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("deleting NodeClaim %s: %w", m.Claim.Name, err)
	}
	c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(metrics.DeletionIdle)).Inc()
	c.Recorder.Eventf(m.Claim, live, corev1.EventTypeNormal, "Idle", "GiveBack", "node %s has been idle since %s (idleAfter %s) and is given back",
		live.Name, live.Annotations[v1alpha1.IdleSinceAnnotation], pool.Class.Spec.Consolidation.IdleAfter)
	log.FromContext(ctx).Info("Gave back an idle node", "node", klog.KObj(live), "nodeClaim", klog.KObj(m.Claim), "nodePool", m.Pool(), "microUSDPerHour", m.Promise.MicroUSDPerHour)
	return nil
}
