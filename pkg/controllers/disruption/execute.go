package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot/records"
)

func (c *Controller) execute(ctx context.Context, round *disruption.Round, cmd disruption.Command) error {
	m, node := cmd.Machine, cmd.Machine.Node
	switch cmd.Step {
	case disruption.MarkIdle:
		return c.edit(ctx, cmd)
	case disruption.Keep, disruption.Hold:
		log.FromContext(ctx).V(1).Info("Keeping node", "node", klog.KObj(node), "reason", cmd.Reason)
		return c.edit(ctx, cmd)
	case disruption.Taint:
		if err := c.edit(ctx, cmd); err != nil {
			return err
		}
		log.FromContext(ctx).Info("Tainted a node that goes", "node", klog.KObj(node), "idleSince", node.Annotations[v1alpha1.IdleSinceAnnotation], "reason", cmd.Reason)
	case disruption.Blocked, disruption.Stay:
		if e := cmd.Event; e != nil {
			c.Recorder.Eventf(m.Node, nil, corev1.EventTypeNormal, e.Reason, "Keep", "%s", e.Note)
		}
	case disruption.Replace, disruption.Stop, disruption.GiveUp:
		return c.mark(ctx, cmd)
	case disruption.Force:
		return c.force(ctx, cmd)
	case disruption.HandOver:
		return c.handOver(ctx, round, cmd)
	case disruption.Remove:
		return c.remove(ctx, round, cmd)
	}
	return nil
}

// edit makes the change of a step to its Node.
func (c *Controller) edit(ctx context.Context, cmd disruption.Command) error {
	return c.patch(ctx, cmd.Machine.Node, func(n *corev1.Node) { cmd.EditNode(n, c.Clock.Now()) })
}

// mark adds or removes the mark of a NodeClaim.
func (c *Controller) mark(ctx context.Context, cmd disruption.Command) error {
	m := cmd.Machine
	if disruption.Disrupting(m.Machine) && cmd.Step != disruption.Replace {
		if err := c.edit(ctx, cmd); err != nil {
			return err
		}
	}
	claim := m.Claim.DeepCopy()
	cmd.EditClaim(claim, c.Clock.Now())
	if err := c.Client.Patch(ctx, claim, client.MergeFrom(m.Claim)); err != nil {
		return ignoreGone(err, "marking", m)
	}
	c.reportMark(ctx, cmd, claim)
	return nil
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
func (c *Controller) handOver(ctx context.Context, round *disruption.Round, cmd disruption.Command) error {
	var gone []*corev1.Pod
	var errs []error
	for _, pod := range cmd.Pods {
		err := karpenter.Evict(ctx, c.Client, pod)
		switch {
		case err == nil:
			gone = append(gone, pod)
			c.Recorder.Eventf(pod, cmd.Machine.Node, corev1.EventTypeNormal, "Moved", "Evict", "has room on another node: %s", plain.Shorten(cmd.Reason, plain.MaxNote/2))
		case !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			errs = append(errs, fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	if len(gone) > 0 {
		c.Metrics.PodsMoved.WithLabelValues(cmd.Machine.Pool(), cmd.Machine.Replacing()).Add(float64(len(gone)))
		round.HandedOver(cmd, gone)
		log.FromContext(ctx).Info("Handed pods over", "node", klog.KObj(cmd.Machine.Node), "pods", len(gone), "to", cmd.Target)
	}
	return errors.Join(errs...)
}

// remove reads the Node and its pods from the API server once more, and deletes the NodeClaim if nothing keeps it.
func (c *Controller) remove(ctx context.Context, round *disruption.Round, cmd disruption.Command) error {
	m := cmd.Machine
	live, err := c.Gatherer.Node(ctx, m.Node.Name)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	pods, err := c.Gatherer.PodsOn(ctx, m.Node.Name)
	if err != nil {
		return err
	}
	look := records.Machine{Claim: m.Claim, Node: live, Promise: m.Promise}
	for i := range pods {
		if pod := &pods[i]; !karpenter.IsTerminal(pod) {
			look.Pods = append(look.Pods, pod)
		}
	}
	if why := round.LastLook(cmd, &look); why != "" {
		log.FromContext(ctx).Info("Keeping node after a last look", "node", klog.KObj(live), "pods", len(look.Pods), "reason", why)
		return c.patch(ctx, live, disruption.ClearNode)
	}
	uid := m.Claim.UID
	if err := c.Client.Delete(ctx, m.Claim, client.Preconditions{UID: &uid}); err != nil {
		return ignoreGone(err, "deleting", m)
	}
	c.reportRemoval(ctx, cmd, &look)
	return nil
}

// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses/status,verbs=patch

// pay writes the accounts of a round to the GPUNodeClasses. If it returns an error, no step may begin.
func (c *Controller) pay(ctx context.Context, commands disruption.Commands) error {
	for _, account := range commands.Accounts {
		if err := c.writeWaste(ctx, account.Class, account.Waste); err != nil {
			return err
		}
		c.memory = c.memory.Written(account)
	}
	return nil
}

// writeWaste writes an account to a GPUNodeClass. The patch contains the whole account, whatever the cache shows.
func (c *Controller) writeWaste(ctx context.Context, class string, waste *v1alpha1.Waste) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"waste": waste}})
	if err != nil {
		return fmt.Errorf("writing the waste of GPUNodeClass %s: %w", class, err)
	}
	object := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
	if err := c.Client.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the waste of GPUNodeClass %s: %w", class, err)
	}
	return nil
}

// steer adds or removes the surplus taint of a machine.
func (c *Controller) steer(ctx context.Context, s disruption.Steer) error {
	log.FromContext(ctx).V(1).Info("Steering new pods", "node", klog.KObj(s.Machine.Node), "away", s.Away)
	return c.patch(ctx, s.Machine.Node, func(n *corev1.Node) { disruption.SetSurplusTaint(n, s.Away) })
}
