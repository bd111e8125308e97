package readiness

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"
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
	if !c.overdue(m) {
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

// overdue reports whether a machine has been closed for as long as one may wait for a group.
func (c *Controller) overdue(m *records.Machine) bool {
	registered := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeRegistered).LastTransitionTime
	return !c.Clock.Now().Before(registered.Add(snapshot.GroupPatience))
}

// nominationPatience is how long a machine waits for the nominations of the others of its group: as long as nominations may take.
const nominationPatience = 2*maxSeating + shownFor

// together returns the machines that accept pods now: the machine alone, or all of its group once the last one of them is there. It returns none while others are still being nominated for. A scheduler
// that saw one after the other would try the group for each, and some do not try it again soon.
func (c *Controller) together(m *records.Machine) []*records.Machine {
	c.seats.Lock()
	defer c.seats.Unlock()
	now := c.Clock.Now()
	maps.DeleteFunc(c.nominatedSince, func(uid types.UID, since time.Time) bool {
		return uid != m.Claim.UID && now.Sub(since) > 2*nominationPatience
	})
	open := []*records.Machine{m}
	for _, o := range c.groups.Together(m, c.Groups) {
		if _, there := c.nominatedSince[o.Claim.UID]; there {
			open = append(open, o)
			continue
		}
		if c.nominatedSince[m.Claim.UID].IsZero() {
			c.nominatedSince[m.Claim.UID] = now
		}
		if now.Sub(c.nominatedSince[m.Claim.UID]) < nominationPatience && !c.overdue(m) {
			return nil
		}
	}
	for _, o := range open {
		delete(c.nominatedSince, o.Claim.UID)
	}
	return open
}

// admitOthers opens the other machines of a group. What fails is tried again by the reconciles of those machines.
func (c *Controller) admitOthers(ctx context.Context, others []*records.Machine) {
	workqueue.ParallelizeUntil(ctx, requestsAtOnce, len(others), func(i int) {
		m, err := c.machine(ctx, others[i].Claim.Name)
		if err == nil && m != nil {
			if v, _ := decide(m, c.Clock.Now(), c.Timeout); v == ready {
				_, err = c.admitNow(ctx, m)
			}
		}
		if err != nil {
			log.FromContext(ctx).Info("A machine of a group was not opened", "nodeClaim", others[i].Claim.Name, "error", err.Error())
		}
	})
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
