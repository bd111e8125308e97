package readiness

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// awaitGroups reports whether a machine waits for others of a group of pods. If it has waited too long, it accepts the other pods for which it was launched, or is given back if there are
// none.
func (c *Controller) awaitGroups(ctx context.Context, m *records.Machine) (bool, error) {
	why, alone, err := c.missing(ctx, m)
	if err != nil || why == "" {
		return false, err
	}
	c.giving.Lock()
	defer c.giving.Unlock()
	registered := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeRegistered).LastTransitionTime
	if until := registered.Add(snapshot.GroupPatience); c.Clock.Now().Before(until) {
		if c.reported[m.Claim.UID] != why {
			c.reported[m.Claim.UID] = why
			c.Recorder.Eventf(m.Claim, m.Node, corev1.EventTypeNormal, "AwaitsGroup", "Await", "%s", plain.Shorten("has its replicas and accepts no pods yet: "+why, plain.MaxNote))
		}
		return true, nil
	}
	if !alone {
		return false, nil
	}
	err = c.Client.Delete(ctx, m.Claim.DeepCopy(), client.Preconditions{UID: &m.Claim.UID, ResourceVersion: &m.Claim.ResourceVersion})
	if err != nil {
		return true, fmt.Errorf("deleting NodeClaim %s, which waits for a group: %w", m.Claim.Name, err)
	}
	delete(c.reported, m.Claim.UID)
	c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(metrics.DeletionGroupIncomplete)).Inc()
	c.Recorder.Eventf(m.Claim, nil, corev1.EventTypeWarning, string(metrics.DeletionGroupIncomplete), "GiveBack", "%s", plain.Shorten(
		fmt.Sprintf("is given back after it waited %s for others: %s; the events of its pods say what is missing", snapshot.GroupPatience, why), plain.MaxNote))
	log.FromContext(ctx).Info("Gave back a node whose group has no place for all of its pods", "nodeClaim", klog.KObj(m.Claim), "why", why)
	return true, nil
}

// missing returns for what a machine waits, and whether nothing else needs it.
func (c *Controller) missing(ctx context.Context, m *records.Machine) (why string, alone bool, err error) {
	c.seats.Lock()
	defer c.seats.Unlock()
	if err := c.look(ctx); err != nil {
		return "", false, err
	}
	_, m.Pods = c.index.Node(m.Node.Name)
	why, alone = c.groups.Awaits(m, c.Groups)
	return why, alone, nil
}
