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
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/wording"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
)

// Config is what the controller needs.
type Config struct {
	Client   client.Client
	Ledger   *Ledger
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Timeout is how long a claim may wait for its machine.
	Timeout time.Duration
}

// Controller follows each NodeClaim of ours until it is launched.
type Controller struct{ Config }

// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=delete
// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("launch").For(&karpv1.NodeClaim{}).Complete(c)
}

// Reconcile looks at one claim.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	claim := &karpv1.NodeClaim{}
	if err := c.Client.Get(ctx, req.NamespacedName, claim); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("reading NodeClaim %s: %w", req.Name, err)
		}
		return reconcile.Result{}, c.refused(ctx, req.Name, fmt.Sprintf("NodeClaim %s vanished before it was launched; its events say why", req.Name))
	}
	if !snapshot.IsOurClaim(claim) {
		return reconcile.Result{}, nil
	}
	shape := ShapeOf(claim)
	v, message, again := decide(claim, c.Clock.Now(), c.Timeout)
	switch v {
	case wait:
		c.Ledger.Await(claim.Name, shape)
		return reconcile.Result{RequeueAfter: again}, nil
	case launched:
		c.Ledger.Launched(claim.Name, shape)
		return reconcile.Result{}, nil
	case refused:
		return reconcile.Result{}, c.refused(ctx, claim.Name, message)
	case hung:
		return c.giveUp(ctx, claim, shape, message)
	}
	return reconcile.Result{}, nil
}

// ShapeOf is what a claim of ours asks the cloud for.
func ShapeOf(claim *karpv1.NodeClaim) Shape {
	s := Shape{Class: claim.Labels[v1alpha1.GPUNodeClassLabel], Pool: claim.Labels[karpv1.NodePoolLabelKey]}
	s.InstanceType, s.Zone, s.CapacityType = snapshot.ShapeOf(claim)
	return s
}

// refused notes that Karpenter gave a claim up, unless that was seen already or we gave it up ourselves. The claim stays on the ledger until the
// refusal is noted, so that an error in between does not lose it.
func (c *Controller) refused(ctx context.Context, claim, message string) error {
	shape, awaited := c.Ledger.Awaited(claim)
	if !awaited {
		return nil
	}
	if err := c.refuse(ctx, shape, false, message); err != nil {
		return err
	}
	c.Ledger.Gone(claim)
	c.Metrics.LaunchesRefused.WithLabelValues(shape.Pool, shape.InstanceType, shape.Zone, shape.CapacityType).Inc()
	return nil
}

// giveUp writes the refusal down before it deletes the claim, so that a crash in between does not lose it.
func (c *Controller) giveUp(ctx context.Context, claim *karpv1.NodeClaim, shape Shape, message string) (reconcile.Result, error) {
	c.Ledger.Await(claim.Name, shape)
	if err := c.refuse(ctx, shape, true, message); err != nil {
		return reconcile.Result{}, err
	}
	// The claim comes from a cache: one that was launched a moment ago must not be deleted.
	err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("deleting NodeClaim %s: %w", claim.Name, err)
	}
	c.Ledger.Gone(claim.Name)
	c.Metrics.LaunchesRefused.WithLabelValues(shape.Pool, shape.InstanceType, shape.Zone, shape.CapacityType).Inc()
	c.Metrics.ClaimsDeleted.WithLabelValues(shape.Pool, string(metrics.DeletionNeverLaunched)).Inc()
	log.FromContext(ctx).Info("Gave up a NodeClaim that was not launched", "nodeClaim", klog.KObj(claim), "reason", message)
	return reconcile.Result{}, nil
}

// refuse writes down that an offering was refused. It may be called again for the same refusal.
func (c *Controller) refuse(ctx context.Context, shape Shape, hung bool, message string) error {
	now := c.Clock.Now()
	class := &v1alpha1.GPUNodeClass{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: shape.Class}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading GPUNodeClass %s: %w", shape.Class, err)
	}
	c.Ledger.Learn(class.Name, class.Status.RefusedOfferings)
	if r, news := c.Ledger.Refuse(shape, hung, message, now); news {
		note := fmt.Sprintf("%s in zone %s (%s) for NodePool %s is left alone until %s: %s",
			r.InstanceType, r.Zone, r.CapacityType, shape.Pool, r.NotBefore.UTC().Format(time.RFC3339), message)
		c.Recorder.Eventf(class, nil, corev1.EventTypeWarning, "LaunchRefused", "Launch", "%s", wording.Shorten(note, wording.MaxNote))
		log.FromContext(ctx).Info("Launch refused", "nodePool", shape.Pool, "instanceType", r.InstanceType, "zone", r.Zone,
			"capacityType", r.CapacityType, "failures", r.Failures, "notBefore", r.NotBefore.Time, "reason", message)
	}
	stored := class.DeepCopy()
	class.Status.RefusedOfferings = c.Ledger.ForStatus(class.Name, now)
	if err := c.Client.Status().Patch(ctx, class, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the refusal to GPUNodeClass %s: %w", class.Name, err)
	}
	return nil
}
