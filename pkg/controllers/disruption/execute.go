package disruption

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot"
)

// execute executes a command.
func (c *Controller) execute(ctx context.Context, s *pass, cmd command) error {
	now := c.Clock.Now().UTC().Format(time.RFC3339)
	m, node := cmd.machine, cmd.machine.Node
	if cmd.step != blocked && cmd.step != stay {
		c.memory.of(m).reported = ""
	}
	switch cmd.step {
	case markIdle:
		return c.patch(ctx, node, func(n *corev1.Node) { annotate(n, v1alpha1.IdleSinceAnnotation, now) })
	case keep, hold:
		log.FromContext(ctx).V(1).Info("Keeping node", "node", klog.KObj(node), "reason", cmd.reason)
		if cmd.step == keep && cmd.reason != "" {
			return c.patch(ctx, node, untaint) // The machine is still idle, and is deleted once nothing blocks it.
		}
		return c.patch(ctx, node, clearNode)
	case taint:
		return c.taint(ctx, node, now, cmd.reason)
	case blocked:
		c.reportStay(m, "IdleButKept", cmd.reason, "idle since "+node.Annotations[v1alpha1.IdleSinceAnnotation])
	case stay:
		c.reportStay(m, string(m.Candidate.Reason)+"ButKept", cmd.reason, m.Candidate.Message)
	case replace, stop, giveUp:
		return c.mark(ctx, s, cmd, now)
	case force:
		return c.force(ctx, cmd)
	case handOver:
		return c.handOver(ctx, s, cmd)
	case remove:
		return c.remove(ctx, s, m)
	}
	return nil
}

// taint taints a node, so that no new pods are scheduled to it, and records the time.
func (c *Controller) taint(ctx context.Context, node *corev1.Node, now, reason string) error {
	err := c.patch(ctx, node, func(n *corev1.Node) {
		annotate(n, v1alpha1.DisruptingSinceAnnotation, now)
		if !tainted(n) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
		}
	})
	if err == nil {
		log.FromContext(ctx).Info("Tainted a node that goes", "node", klog.KObj(node), "idleSince", node.Annotations[v1alpha1.IdleSinceAnnotation], "reason", reason)
	}
	return err
}

// mark adds or removes the mark of a NodeClaim.
func (c *Controller) mark(ctx context.Context, s *pass, cmd command, now string) error {
	m := cmd.machine
	if disrupting(m.Machine) && cmd.step != replace {
		if err := c.patch(ctx, m.Node, clearNode); err != nil {
			return err
		}
	}
	claim := m.Claim.DeepCopy()
	was := m.Replacing()
	switch cmd.step {
	case replace:
		claim.Annotations[v1alpha1.ReplacingAnnotation] = cmd.reason
		claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = now
	case giveUp:
		failed := retention.Failures(m.Machine) + 1
		claim.Annotations[v1alpha1.ReplacementFailuresAnnotation] = strconv.Itoa(failed)
		claim.Annotations[v1alpha1.ReplaceAfterAnnotation] = s.now.Add(retention.Backoff(failed)).UTC().Format(time.RFC3339)
		fallthrough
	default:
		delete(claim.Annotations, v1alpha1.ReplacingAnnotation)
		delete(claim.Annotations, v1alpha1.ReplacingSinceAnnotation)
	}
	if err := c.Client.Patch(ctx, claim, client.MergeFrom(m.Claim)); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("marking NodeClaim %s: %w", claim.Name, err)
	}
	logger := log.FromContext(ctx).WithValues("node", klog.KObj(m.Node), "nodeClaim", klog.KObj(claim), "nodePool", m.Pool())
	switch cmd.step {
	case replace:
		what := why(m, cmd.reason)
		c.Metrics.Replacements.WithLabelValues(m.Pool(), cmd.reason, string(metrics.ReplacementBegun)).Inc()
		kind, word := corev1.EventTypeNormal, "Replacing"
		if cmd.reason == reason.Unhealthy {
			kind, word = corev1.EventTypeWarning, reason.Unhealthy
		}
		c.Recorder.Eventf(m.Node, claim, kind, word, "Replace", "%s", plain.Shorten(what+"; its pods get a new place first", plain.MaxNote))
		logger.Info("Replacing a node", "reason", cmd.reason, "why", what)
	case giveUp:
		c.Metrics.Replacements.WithLabelValues(m.Pool(), was, string(metrics.ReplacementGivenUp)).Inc()
		c.Recorder.Eventf(m.Node, claim, corev1.EventTypeWarning, "ReplacementFailed", "Replace", "%s", plain.Shorten(fmt.Sprintf(
			"stays, since its pods got no new place within %s: %s; tried again after %s", patience, cmd.reason, claim.Annotations[v1alpha1.ReplaceAfterAnnotation]), plain.MaxNote))
		logger.Info("Gave up replacing a node", "reason", cmd.reason, "failures", retention.Failures(&snapshot.Machine{Claim: claim}))
	default:
		c.Metrics.Replacements.WithLabelValues(m.Pool(), was, string(metrics.ReplacementStopped)).Inc()
		logger.Info("A node is not replaced after all", "reason", cmd.reason)
	}
	return nil
}

// why returns the reason for marking a machine, for events.
func why(m *reason.Machine, word string) string {
	if m.Candidate == nil || word == reason.Expiring {
		return "it expires soon"
	}
	return m.Candidate.Message
}

func annotate(n *corev1.Node, key, value string) {
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[key] = value
}

// clearNode removes from the Node the marks of an idle or disrupted machine.
func clearNode(n *corev1.Node) {
	delete(n.Annotations, v1alpha1.IdleSinceAnnotation)
	untaint(n)
}

// untaint removes from the Node the marks of a disrupted machine.
func untaint(n *corev1.Node) {
	delete(n.Annotations, v1alpha1.DisruptingSinceAnnotation)
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.DisruptingTaintKey })
}

// patch changes a Node with an optimistic lock, because others also change the list of taints.
func (c *Controller) patch(ctx context.Context, node *corev1.Node, change func(*corev1.Node)) error {
	changed := node.DeepCopy()
	change(changed)
	err := c.Client.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("marking node %s: %w", node.Name, err)
	}
	return nil
}

// handOver evicts pods. Pods stay if their PodDisruptionBudgets do not allow the eviction now.
func (c *Controller) handOver(ctx context.Context, s *pass, cmd command) error {
	var gone []*corev1.Pod
	var errs []error
	for _, pod := range cmd.pods {
		err := karpenter.Evict(ctx, c.Client, pod)
		switch {
		case err == nil:
			gone = append(gone, pod)
			c.Recorder.Eventf(pod, cmd.machine.Node, corev1.EventTypeNormal, "Moved", "Evict", "has room on another node: %s", plain.Shorten(cmd.reason, plain.MaxNote/2))
		case !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			errs = append(errs, fmt.Errorf("evicting pod %s: %w", podName(pod), err))
		}
	}
	if len(gone) > 0 {
		c.Metrics.PodsMoved.WithLabelValues(cmd.machine.Pool(), cmd.machine.Replacing()).Add(float64(len(gone)))
		record := c.memory.pools[cmd.machine.Pool()]
		record.handed = record.handed.note(cmd.machine.Claim.Name, gone, s.now)
		log.FromContext(ctx).Info("Handed pods over", "node", klog.KObj(cmd.machine.Node), "pods", len(gone), "to", *s.pool(cmd.machine).target)
	}
	return errors.Join(errs...)
}

// remove reads the Node and its pods from the API server once more, and deletes the NodeClaim if nothing keeps it.
func (c *Controller) remove(ctx context.Context, s *pass, m *reason.Machine) error {
	live, err := c.Gatherer.Node(ctx, m.Node.Name)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	pods, err := c.Gatherer.PodsOn(ctx, m.Node.Name)
	if err != nil {
		return err
	}
	look := snapshot.Machine{Claim: m.Claim, Node: live, Promise: m.Promise}
	for i := range pods {
		if pod := &pods[i]; !karpenter.IsTerminal(pod) {
			look.Pods = append(look.Pods, pod)
		}
	}
	if why := s.blockedLive(m, &look); why != "" {
		log.FromContext(ctx).Info("Keeping node after a last look", "node", klog.KObj(live), "pods", len(look.Pods), "reason", why)
		return c.patch(ctx, live, clearNode)
	}
	uid := m.Claim.UID
	if err := c.Client.Delete(ctx, m.Claim, client.Preconditions{UID: &uid}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("deleting NodeClaim %s: %w", m.Claim.Name, err)
	}
	c.removed(ctx, m, &look)
	return nil
}
