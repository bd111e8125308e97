package readiness

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// awaitGroups returns false if a machine may accept pods. Otherwise it waits for others of a group of pods. If it has waited too long, it accepts the other pods for which it was launched, or
// is given back if there are none.
func (c *Controller) awaitGroups(ctx context.Context, m *records.Machine) (waits bool, result reconcile.Result, err error) {
	why, alone, err := c.missing(ctx, m)
	if err != nil || why == "" {
		return err != nil, result, err
	}
	registered := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeRegistered).LastTransitionTime
	if c.Clock.Now().Before(registered.Add(snapshot.GroupPatience)) {
		return true, reconcile.Result{RequeueAfter: soon}, nil
	}
	if !alone {
		return false, result, nil
	}
	c.giving.Lock()
	defer c.giving.Unlock()
	if there, err := c.lookAt(ctx, m); err != nil || !there {
		return true, reconcile.Result{RequeueAfter: soon}, err
	}
	if v, _ := decide(m, c.Clock.Now(), c.Timeout); v != ready || !m.Empty() {
		return true, reconcile.Result{RequeueAfter: soon}, nil // The cache will show it.
	}
	result, err = c.deleteFor(ctx, m, metrics.DeletionGroupIncomplete,
		fmt.Sprintf("is given back after it waited %s for others: %s; the events of its pods say what is missing", snapshot.GroupPatience, why))
	return true, result, err
}

// missing returns for what a machine waits, and whether nothing else needs it. It records an event if the reason is new.
func (c *Controller) missing(ctx context.Context, m *records.Machine) (why string, alone bool, err error) {
	c.seats.Lock()
	defer c.seats.Unlock()
	if err := c.look(ctx); err != nil {
		return "", false, err
	}
	if why, alone = c.groups.Awaits(m, c.Groups); why == "" {
		delete(c.awaited, m.Claim.UID)
	} else if c.awaited[m.Claim.UID] != why {
		c.awaited[m.Claim.UID] = why
		c.Recorder.Eventf(m.Claim, m.Node, corev1.EventTypeNormal, "AwaitsGroup", "Await", "%s", plain.Shorten("has its replicas and accepts no pods yet: "+why, plain.MaxNote))
	}
	return why, alone, nil
}
