// Package launch watches Karve's NodeClaims until the cloud has launched their machines, deletes those that it does not launch, and records which offerings
// were refused. A NodeClaim that cannot launch blocks all provisioning of Karpenter, so no NodeClaim waits long, and refused offerings are not retried
// immediately. Package fleet/launching decides.
package launch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Config has the dependencies and settings of the controller.
type Config struct {
	Client client.Client
	// NodeClass reads the state of one of the cloud's node classes.
	NodeClass func(context.Context, v1alpha1.NodeClassReference) (facts.NodeClassState, error)
	Ledger    *launching.Ledger
	Metrics   *metrics.Metrics
	Recorder  events.EventRecorder
	Clock     clock.PassiveClock
	// Timeout is how long a NodeClaim may wait for its machine.
	Timeout time.Duration
}

// Controller handles each of Karve's NodeClaims until it is launched.
type Controller struct{ Config }

// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=delete
// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=default,resources=events,verbs=list;watch

// Register adds the controller to the manager. The manager's cache should only have the events that [AboutNodeClaims] selects.
func (c *Controller) Register(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("launch").For(&karpv1.NodeClaim{}).
		Watches(&corev1.Event{}, handler.EnqueueRequestsFromMapFunc(claimOf)).
		Complete(c)
}

// Reconcile handles one NodeClaim, and late events about an earlier one with that name.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := c.handle(ctx, req)
	if err != nil {
		return reconcile.Result{}, err
	}
	return result, c.interrupted(ctx, req.Name)
}

// handle handles a NodeClaim, or the ledger entry of one that is gone.
func (c *Controller) handle(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	claim := &karpv1.NodeClaim{}
	if err := c.Client.Get(ctx, req.NamespacedName, claim); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("reading NodeClaim %s: %w", req.Name, err)
		}
		return c.refused(ctx, req.Name, "", fmt.Sprintf("NodeClaim %s vanished before it was launched; its events say why", req.Name))
	}
	if !facts.IsOurClaim(claim) {
		return reconcile.Result{}, nil
	}
	switch d := launching.Decide(claim, c.Clock.Now(), c.Timeout); d.Verdict {
	case launching.Wait:
		c.Ledger.Await(claim.Name, claim.UID, launching.ShapeOf(claim))
		return reconcile.Result{RequeueAfter: d.Again}, nil
	case launching.Launched:
		c.launched(claim)
		return reconcile.Result{}, nil
	case launching.Refused:
		return c.refused(ctx, claim.Name, d.Reason, d.Message)
	case launching.Hung:
		return c.giveUp(ctx, claim, d)
	case launching.Leaving:
		c.launched(claim)
		c.noteDeleting(claim)
	}
	return reconcile.Result{}, nil
}

// launched records that the cloud launched the offering of the NodeClaim.
func (c *Controller) launched(claim *karpv1.NodeClaim) {
	instanceType, zone, capacityType := records.ShapeOf(claim)
	at := facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched).LastTransitionTime.Time
	c.Ledger.Launched(claim.Name, claim.Labels[v1alpha1.GPUNodeClassLabel], instanceType, zone, capacityType, at)
}

// PoolGone reports whether the NodePool of a NodeClaim does not exist or is being deleted. Kubernetes deletes all NodeClaims of such a pool.
func PoolGone(ctx context.Context, c client.Reader, s launching.Shape) (bool, error) {
	np := &karpv1.NodePool{}
	if err := c.Get(ctx, client.ObjectKey{Name: s.Pool}, np); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading NodePool %s: %w", s.Pool, err)
	}
	return !np.DeletionTimestamp.IsZero() || s.PoolUID != "" && s.PoolUID != np.UID, nil
}

// refused records that Karpenter deleted a NodeClaim before it was launched, unless that is already recorded or Karve deleted it. The NodeClaim stays
// in the ledger until the refusal is recorded, so that an error does not lose it. If the reason is unknown, the launches of its GPUNodeClass pause
// until Karpenter's event gives one, or until the event can no longer be expected.
func (c *Controller) refused(ctx context.Context, claim, reason, message string) (reconcile.Result, error) {
	e, lost, ok := c.Ledger.Unlaunched(claim)
	if !ok {
		return reconcile.Result{}, nil
	}
	refusals, err := c.explain(ctx, claim, e, reason, message)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(refusals) == 0 {
		return c.vanished(ctx, claim, e, lost, message)
	}
	now := c.Clock.Now()
	c.Ledger.Explain(claim, e.Shape.Class)
	if err := c.refuse(ctx, e.Shape, now, refusals...); err != nil {
		return reconcile.Result{}, err
	}
	c.Ledger.Gone(claim)
	c.count(e.Shape, refusals[0].Reason)
	return reconcile.Result{}, nil
}

// vanished records that a NodeClaim is gone without a reason. lost reports whether that was recorded before. A NodeClaim without a NodePool was deleted
// with it, so nothing failed.
func (c *Controller) vanished(ctx context.Context, claim string, e launching.Entry, lost bool, message string) (reconcile.Result, error) {
	gone, err := PoolGone(ctx, c.Client, e.Shape)
	now := c.Clock.Now()
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case gone:
		c.Ledger.Gone(claim)
		return reconcile.Result{}, nil
	case !lost:
		if err := c.refuse(ctx, e.Shape, now, launching.RefusalFor(e.Shape, v1alpha1.RefusalVanished, message, launching.Cloud{})); err != nil {
			return reconcile.Result{}, err
		}
		c.Ledger.Lose(claim, now)
		return reconcile.Result{RequeueAfter: launching.Explained}, nil
	}
	if left := e.Missing.Add(launching.Explained).Sub(now); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	c.Ledger.Gone(claim)
	c.count(e.Shape, v1alpha1.RefusalVanished)
	return reconcile.Result{}, nil
}

// giveUp records the refusal before it deletes the NodeClaim, so that a crash does not lose it.
func (c *Controller) giveUp(ctx context.Context, claim *karpv1.NodeClaim, d launching.Decision) (reconcile.Result, error) {
	shape, now := launching.ShapeOf(claim), c.Clock.Now()
	c.Ledger.Await(claim.Name, claim.UID, shape)
	cloud, _, err := c.readCloud(ctx, shape)
	if err != nil {
		return reconcile.Result{}, err
	}
	r := c.Ledger.Judge(shape, d.Reason, d.Message, cloud, claim.CreationTimestamp.Time, now)
	if err := c.refuse(ctx, shape, now, r); err != nil {
		return reconcile.Result{}, err
	}
	// The NodeClaim comes from a cache. A NodeClaim that was just launched must not be deleted.
	err = c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("deleting NodeClaim %s: %w", claim.Name, err)
	}
	if d.Held {
		c.Ledger.Quiet(now)
	}
	c.Ledger.Gone(claim.Name)
	c.count(shape, r.Reason)
	c.Metrics.ClaimsDeleted.WithLabelValues(shape.Pool, string(metrics.DeletionNeverLaunched)).Inc()
	log.FromContext(ctx).Info("Gave up a NodeClaim that was not launched", "nodeClaim", klog.KObj(claim), "reason", d.Reason, "message", d.Message)
	return reconcile.Result{}, nil
}

// noteDeleting records a spot machine that is being deleted.
func (c *Controller) noteDeleting(claim *karpv1.NodeClaim) {
	instanceType, zone, capacityType := records.ShapeOf(claim)
	if capacityType != karpv1.CapacityTypeSpot {
		return
	}
	c.Ledger.Depart(claim.Name, launching.Departure{
		UID: claim.UID, Shape: launching.ShapeOf(claim), Deleted: claim.DeletionTimestamp.Time, Seen: c.Clock.Now(), Refusal: launching.Refusal{
			InstanceTypes: []string{instanceType}, Zones: []string{zone}, CapacityType: capacityType, Reason: v1alpha1.RefusalSpotInterrupted,
			Message: fmt.Sprintf("the spot machine of NodeClaim %s was interrupted", claim.Name),
		},
	})
}

// interrupted records that the cloud interrupted a spot machine if Karpenter's event says so: the cloud has no spare capacity there for now. Under load
// the event arrives after the NodeClaim is gone, or even after there is another one with that name.
func (c *Controller) interrupted(ctx context.Context, claim string) error {
	d, ok := c.Ledger.Departure(claim, c.Clock.Now())
	if !ok {
		return nil
	}
	event, err := c.eventOf(ctx, claim, d.UID, clouds.Interrupts)
	if err != nil || event == nil {
		return err
	}
	// The time is that of the deletion, which does not change: a restarted controller sees old events again, and the sender of the event cannot choose the
	// time.
	if err := c.refuse(ctx, d.Shape, d.Deleted, d.Refusal); err != nil {
		return err
	}
	c.Ledger.Interrupted(claim)
	return nil
}

func (c *Controller) count(s launching.Shape, reason string) {
	c.Metrics.LaunchesRefused.WithLabelValues(s.Pool, s.CapacityType, launching.Known(reason)).Inc()
}
