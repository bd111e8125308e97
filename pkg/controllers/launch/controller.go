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
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
)

// Config has the dependencies and settings of the controller.
type Config struct {
	Client client.Client
	// NodeClass reads the state of one of the cloud's node classes.
	NodeClass func(context.Context, v1alpha1.NodeClassReference) (snapshot.NodeClassState, error)
	Ledger    *Ledger
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
	if !snapshot.IsOurClaim(claim) {
		return reconcile.Result{}, nil
	}
	switch d := decide(claim, c.Clock.Now(), c.Timeout); d.verdict {
	case wait:
		c.Ledger.Await(claim.Name, claim.UID, ShapeOf(claim))
		return reconcile.Result{RequeueAfter: d.again}, nil
	case launched:
		c.launched(claim)
		return reconcile.Result{}, nil
	case refused:
		return c.refused(ctx, claim.Name, d.reason, d.message)
	case hung:
		return c.giveUp(ctx, claim, d)
	case leaving:
		c.launched(claim)
		c.depart(claim)
	}
	return reconcile.Result{}, nil
}

// launched records that the cloud launched the offering of the NodeClaim.
func (c *Controller) launched(claim *karpv1.NodeClaim) {
	instanceType, zone, capacityType := snapshot.ShapeOf(claim)
	at := snapshot.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched).LastTransitionTime.Time
	c.Ledger.Launched(claim.Name, claim.Labels[v1alpha1.GPUNodeClassLabel], instanceType, zone, capacityType, at)
}

// ShapeOf returns what one of Karve's NodeClaims requests from the cloud.
func ShapeOf(claim *karpv1.NodeClaim) Shape {
	s := Shape{Class: claim.Labels[v1alpha1.GPUNodeClassLabel], Pool: claim.Labels[karpv1.NodePoolLabelKey]}
	s.InstanceTypes, s.Zones, s.CapacityType = snapshot.RequestedOfferings(claim)
	for _, owner := range claim.OwnerReferences {
		if owner.Kind == "NodePool" && owner.Name == s.Pool {
			s.PoolUID = owner.UID
		}
	}
	return s
}

// PoolGone reports whether the NodePool of a NodeClaim does not exist or is being deleted. Kubernetes deletes all NodeClaims of such a pool.
func PoolGone(ctx context.Context, c client.Reader, s Shape) (bool, error) {
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
	e, lost, ok := c.Ledger.unlaunched(claim)
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
	c.Ledger.explain(claim, e.shape.Class)
	if err := c.refuse(ctx, e.shape, now, refusals...); err != nil {
		return reconcile.Result{}, err
	}
	c.Ledger.Gone(claim)
	c.count(e.shape, refusals[0].Reason)
	return reconcile.Result{}, nil
}

// vanished records that a NodeClaim is gone without a reason. lost reports whether that was recorded before. A NodeClaim without a NodePool was deleted
// with it, so nothing failed.
func (c *Controller) vanished(ctx context.Context, claim string, e entry, lost bool, message string) (reconcile.Result, error) {
	gone, err := PoolGone(ctx, c.Client, e.shape)
	now := c.Clock.Now()
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case gone:
		c.Ledger.Gone(claim)
		return reconcile.Result{}, nil
	case !lost:
		if err := c.refuse(ctx, e.shape, now, refusalFor(e.shape, v1alpha1.RefusalVanished, message, Cloud{})); err != nil {
			return reconcile.Result{}, err
		}
		c.Ledger.lose(claim, now)
		return reconcile.Result{RequeueAfter: explained}, nil
	}
	if left := e.missing.Add(explained).Sub(now); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	c.Ledger.Gone(claim)
	c.count(e.shape, v1alpha1.RefusalVanished)
	return reconcile.Result{}, nil
}

// giveUp records the refusal before it deletes the NodeClaim, so that a crash does not lose it.
func (c *Controller) giveUp(ctx context.Context, claim *karpv1.NodeClaim, d decision) (reconcile.Result, error) {
	shape, now := ShapeOf(claim), c.Clock.Now()
	c.Ledger.Await(claim.Name, claim.UID, shape)
	cloud, err := c.cloud(ctx, shape)
	if err != nil {
		return reconcile.Result{}, err
	}
	r := c.Ledger.judge(shape, d.reason, d.message, cloud, claim.CreationTimestamp.Time, now)
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
	if d.held {
		c.Ledger.Quiet(now)
	}
	c.Ledger.Gone(claim.Name)
	c.count(shape, r.Reason)
	c.Metrics.ClaimsDeleted.WithLabelValues(shape.Pool, string(metrics.DeletionNeverLaunched)).Inc()
	log.FromContext(ctx).Info("Gave up a NodeClaim that was not launched", "nodeClaim", klog.KObj(claim), "reason", d.reason, "message", d.message)
	return reconcile.Result{}, nil
}

// depart records a spot machine that is being deleted.
func (c *Controller) depart(claim *karpv1.NodeClaim) {
	instanceType, zone, capacityType := snapshot.ShapeOf(claim)
	if capacityType != karpv1.CapacityTypeSpot {
		return
	}
	c.Ledger.depart(claim.Name, departure{
		uid: claim.UID, shape: ShapeOf(claim), deleted: claim.DeletionTimestamp.Time, seen: c.Clock.Now(), refusal: Refusal{
			InstanceTypes: []string{instanceType}, Zones: []string{zone}, CapacityType: capacityType, Reason: v1alpha1.RefusalSpotInterrupted,
			Message: fmt.Sprintf("the spot machine of NodeClaim %s was interrupted", claim.Name),
		},
	})
}

// interrupted records that the cloud interrupted a spot machine if Karpenter's event says so: the cloud has no spare capacity there for now. Under load
// the event arrives after the NodeClaim is gone, or even after there is another one with that name.
func (c *Controller) interrupted(ctx context.Context, claim string) error {
	d, ok := c.Ledger.departure(claim, c.Clock.Now())
	if !ok {
		return nil
	}
	event, err := c.eventOf(ctx, claim, d.uid, clouds.Interrupts)
	if err != nil || event == nil {
		return err
	}
	// The time is that of the deletion, which does not change: a restarted controller sees old events again, and the sender of the event cannot choose the
	// time.
	if err := c.refuse(ctx, d.shape, d.deleted, d.refusal); err != nil {
		return err
	}
	c.Ledger.interrupted(claim)
	return nil
}

func (c *Controller) count(s Shape, reason string) {
	c.Metrics.LaunchesRefused.WithLabelValues(s.Pool, s.CapacityType, known(reason)).Inc()
}
