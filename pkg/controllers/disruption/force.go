package disruption

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// force deletes the NodeClaim first and then ends its drain. With the reverse order, the termination timestamp would also end the drain of a later
// deletion by anyone else. If the second step fails, the next pass repeats it.
func (c *Controller) force(ctx context.Context, cmd disruption.Command) error {
	m := cmd.Machine
	live, err := c.Gatherer.Node(ctx, m.Node.Name)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	now := c.Clock.Now()
	look := records.Machine{Claim: m.Claim, Node: live, Promise: m.Promise}
	if found := c.Tolerations.Fault(&look, now); found == nil || !found.Forceful || found.Until.After(now) {
		log.FromContext(ctx).Info("Keeping a node that has come back", "node", klog.KObj(live))
		return nil
	}
	if !m.Deleting() {
		uid := m.Claim.UID
		if err := c.Client.Delete(ctx, m.Claim.DeepCopy(), client.Preconditions{UID: &uid}); err != nil {
			return ignoreGone(err, "deleting", m)
		}
		c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), reason.Unhealthy).Inc()
		c.Recorder.Eventf(m.Node, m.Claim, corev1.EventTypeWarning, reason.Unhealthy, "Delete", "%s", plain.Shorten(
			fmt.Sprintf("%s, and is deleted without waiting for its %s, for which its kubelet does not answer", cmd.Reason, words.Count(len(m.Moving()), "pod")), plain.MaxNote))
		log.FromContext(ctx).Info("Deleted an unhealthy node", "node", klog.KObj(m.Node), "nodeClaim", klog.KObj(m.Claim), "nodePool", m.Pool(), "why", cmd.Reason)
	}
	claim := m.Claim.DeepCopy()
	cmd.EditClaim(claim, now)
	if err := c.Client.Patch(ctx, claim, client.MergeFrom(m.Claim)); err != nil {
		return ignoreGone(err, "hurrying", m)
	}
	return nil
}

func ignoreGone(err error, doing string, m *reason.Machine) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s NodeClaim %s: %w", doing, m.Claim.Name, err)
}

// noteShortages records on Nodes when they began to expose fewer replicas than promised, because no condition of the Node has this time.
func (c *Controller) noteShortages(ctx context.Context, view *snapshot.View) error {
	var errs []error
	now := view.Now()
	for i := range view.Machines {
		m := &view.Machines[i]
		if m.Node == nil || m.Deleting() {
			continue
		}
		_, noted := m.Node.Annotations[v1alpha1.ReplicasShortSinceAnnotation]
		since := repair.ShortSince(m.Node)
		var err error
		switch short := repair.Short(m); {
		case short && (since == nil || since.After(now)): // A time in the future was written by another clock.
			err = c.patch(ctx, m.Node, func(n *corev1.Node) {
				metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.ReplicasShortSinceAnnotation, now.UTC().Format(time.RFC3339))
			})
		case !short && noted:
			err = c.patch(ctx, m.Node, func(n *corev1.Node) { delete(n.Annotations, v1alpha1.ReplicasShortSinceAnnotation) })
		}
		if !apierrors.IsConflict(err) { // After a conflict, the next pass tries again.
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
