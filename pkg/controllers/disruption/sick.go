package disruption

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/wording"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

// force deletes the NodeClaim of a machine whose kubelet does not answer for its pods any more, and has its drain end at once: its pods cannot be
// ended by asking, so whatever they say holds nothing but the machine's price.
const force step = "Force"

// heed takes from a diagnosis what is to be done. A machine that is sick and kept is still replaced for another cause.
func (s *state) heed(d repair.Diagnosis) {
	s.sick, s.lost = d.Cases, map[string]bool{}
	for i := range s.machines {
		if m := &s.machines[i]; m.Node != nil && s.ails(m) != "" {
			s.places.unhealthy = append(s.places.unhealthy, m.Node.Name)
		}
	}
	for name, sick := range d.Cases {
		switch {
		case sick.Wait > 0:
		case sick.Forceful && sick.Kept == "":
			s.lost[name] = true
		default:
			if _, ok := s.causes[name]; !ok || sick.Kept == "" {
				s.causes[name] = unhealthy(sick)
			}
		}
	}
}

// forced are the machines that are deleted at once. While one of them is not being deleted yet they go alone: whether others may go is asked when its
// pods are demand.
func (s *state) forced() (actions []action, alone bool) {
	for _, m := range s.inTurn() {
		if s.lost[m.Claim.Name] && !hurried(m, s.now) {
			actions = append(actions, action{step: force, machine: m, reason: s.sick[m.Claim.Name].Message})
			alone = alone || !m.Deleting()
		}
	}
	return actions, alone
}

// ails says that a machine is sick, which is another matter than what it costs; "" when it is not.
func (s *state) ails(m *snapshot.Machine) string {
	if sick, ok := s.sick[m.Claim.Name]; ok {
		return "it is unhealthy: " + sick.Message
	}
	return ""
}

// falling is when the next machine has been sick for long enough.
func (s *state) falling() time.Duration {
	soonest := longestWait
	for _, sick := range s.sick {
		if sick.Wait > 0 {
			soonest = min(soonest, sick.Wait)
		}
	}
	return soonest
}

// hurried says that a machine is on its way out and drains no longer.
func hurried(m *snapshot.Machine, now time.Time) bool {
	until := timeIn(m.Claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	return m.Deleting() && until != nil && !until.After(now)
}

// force deletes first and hurries then: what is written to a claim that is not being deleted would hurry whoever deletes it later. When nothing comes of the
// second, the next look finds a machine that still drains.
func (c *Controller) force(ctx context.Context, a action) error {
	m := a.machine
	live := &corev1.Node{}
	if err := c.Gatherer.Live.Get(ctx, client.ObjectKey{Name: m.Node.Name}, live); err != nil {
		return client.IgnoreNotFound(err)
	}
	now := c.Clock.Now()
	look := snapshot.Machine{Claim: m.Claim, Node: live, Promise: m.Promise}
	if sick := c.Tolerations.Sickness(&look, now); sick == nil || !sick.Forceful || sick.Until.After(now) {
		log.FromContext(ctx).Info("Keeping a node that has come back", "node", klog.KObj(live))
		return nil
	}
	if !m.Deleting() {
		uid := m.Claim.UID
		if err := c.Client.Delete(ctx, m.Claim.DeepCopy(), client.Preconditions{UID: &uid}); err != nil {
			return ignoreGone(err, "deleting", m)
		}
		c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), Unhealthy).Inc()
		c.Recorder.Eventf(m.Node, m.Claim, corev1.EventTypeWarning, Unhealthy, "Delete", "%s", wording.Shorten(
			fmt.Sprintf("%s, and is deleted without waiting for its %d pods, which its kubelet does not answer for", a.reason, len(m.Moving())), wording.MaxNote))
		log.FromContext(ctx).Info("Deleted an unhealthy node", "node", klog.KObj(m.Node), "nodeClaim", klog.KObj(m.Claim), "nodePool", m.Pool(), "why", a.reason)
	}
	claim, at := m.Claim.DeepCopy(), now.UTC().Format(time.RFC3339)
	claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] = at
	if m.Replacing() != Unhealthy {
		claim.Annotations[v1alpha1.ReplacingAnnotation], claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = Unhealthy, at
	}
	if err := c.Client.Patch(ctx, claim, client.MergeFrom(m.Claim)); err != nil {
		return ignoreGone(err, "hurrying", m)
	}
	return nil
}

func ignoreGone(err error, doing string, m *snapshot.Machine) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s NodeClaim %s: %w", doing, m.Claim.Name, err)
}

// noteShortages writes to Nodes since when they expose fewer replicas than they promised, since no condition of a Node says it.
func (c *Controller) noteShortages(ctx context.Context, s *state) error {
	var errs []error
	for i := range s.machines {
		m := &s.machines[i]
		if m.Node == nil || m.Deleting() {
			continue
		}
		_, noted := m.Node.Annotations[v1alpha1.ReplicasShortSinceAnnotation]
		since := repair.ShortSince(m.Node)
		var err error
		switch short := repair.Short(m); {
		case short && (since == nil || since.After(s.now)): // What lies ahead was written by another clock.
			err = c.patch(ctx, m.Node, func(n *corev1.Node) {
				annotate(n, v1alpha1.ReplicasShortSinceAnnotation, s.now.UTC().Format(time.RFC3339))
			})
		case !short && noted:
			err = c.patch(ctx, m.Node, func(n *corev1.Node) { delete(n.Annotations, v1alpha1.ReplicasShortSinceAnnotation) })
		}
		if !apierrors.IsConflict(err) { // The Node has changed, and is looked at again.
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// measureHealth shows how many machines of each pool are sick, and with what.
func (c *Controller) measureHealth(s *state) {
	c.Metrics.NodesUnhealthy.Reset()
	for i := range s.machines {
		if sick, ok := s.sick[s.machines[i].Claim.Name]; ok {
			c.Metrics.NodesUnhealthy.WithLabelValues(s.machines[i].Pool(), sick.Reason).Inc()
		}
	}
}

// healthChanged lets through what can make a machine sick or well again. The heartbeats of conditions are not that.
func healthChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*corev1.Node)
		after, okAfter := e.ObjectNew.(*corev1.Node)
		if !okBefore || !okAfter {
			return false
		}
		exposed := func(n *corev1.Node) int64 {
			return amount.Value(n.Status.Allocatable[snapshot.PromiseOf(n.Annotations).Resource])
		}
		return statuses(before) != statuses(after) || exposed(before) != exposed(after)
	}}
}

// statuses are those of a Node's conditions.
func statuses(n *corev1.Node) string {
	var all strings.Builder
	for _, c := range n.Status.Conditions {
		fmt.Fprintf(&all, "%s=%s(%s) ", c.Type, c.Status, c.Reason)
	}
	return all.String()
}
