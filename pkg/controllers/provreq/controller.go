// Package provreq reports on ProvisioningRequests. The machines for them are launched, kept and deleted like those of pods.
package provreq

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/fleet/booking"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/provreq"
)

const (
	// often is how often requests are looked at that wait for room, and seldom how often those are that have it.
	often, seldom = 2 * time.Second, 10 * time.Second
	// effort limits the search for what a request would cost alone, which is made for each request without room.
	effort = solve.DefaultEffort / 10
)

// Config has the dependencies of the controller.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Planner  *planning.Planner
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
}

// Controller reconciles all requests together.
type Controller struct{ Config }

// +kubebuilder:rbac:feature=provisioning-requests,groups=autoscaling.x-k8s.io,resources=provisioningrequests/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager, if the API server serves ProvisioningRequests.
func (c *Controller) Register(m ctrl.Manager) error {
	if !c.Gatherer.ProvisioningRequests {
		return nil
	}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(m).Named("provreq").
		Watches(provreq.New(), one).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// Reconcile writes the conditions of all requests.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the cluster: %w", err)
	}
	g, err := c.Planner.Of(ctx, cluster)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(g.View.Requested) == 0 {
		return reconcile.Result{}, nil
	}
	plan, search := g.Plan(ctx), checked.WithEffort(effort)
	if plan.Err != nil {
		return reconcile.Result{RequeueAfter: often}, nil //nolint:nilerr // The planner has reported it.
	}
	wait := seldom
	var errs []error
	for _, f := range booking.Observe(plan, search) {
		f.Now = c.Clock.Now()
		if !f.Request.Is(provreq.Provisioned) {
			wait = often
		}
		if next := booking.Next(f); len(next) > 0 {
			errs = append(errs, c.write(ctx, f.Request, next))
		}
	}
	return reconcile.Result{RequeueAfter: wait}, errors.Join(errs...)
}

// write sets conditions of a request. If it has changed meanwhile, the next pass looks at it again.
func (c *Controller) write(ctx context.Context, r *provreq.Request, next []metav1.Condition) error {
	for i := range next {
		next[i].LastTransitionTime = metav1.NewTime(c.Clock.Now())
	}
	object, patch, err := r.Patch(next)
	if err != nil {
		return err
	}
	if err := c.Client.Status().Patch(ctx, object, patch); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("writing the conditions of %s: %w", r, err)
	}
	for _, condition := range next {
		if condition.Type == provreq.Accepted || condition.Status != metav1.ConditionTrue {
			continue
		}
		kind := corev1.EventTypeWarning
		if condition.Type == provreq.Provisioned || condition.Type == provreq.BookingExpired {
			kind = corev1.EventTypeNormal
		}
		log.FromContext(ctx).Info("A ProvisioningRequest has a condition", "namespace", r.Namespace, "name", r.Name, "condition", condition.Type, "reason", condition.Reason, "message", condition.Message)
		c.Recorder.Eventf(r.Reference(), nil, kind, condition.Type, "Plan", "%s", plain.Shorten(condition.Message, plain.MaxNote))
	}
	return nil
}
