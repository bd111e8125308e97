// Package rollout updates the machine images of node classes for GPU nodes as GPUImageRollouts specify. It reads the state, calls
// karve.sh/karve/pkg/rollout to decide, writes the status, and executes the decision.
package rollout

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/rollout"
)

// soon is the shortest delay, and the one after a conflict.
const soon = time.Second

// Config has the dependencies and settings of the controller.
type Config struct {
	Client client.Client
	// Live reads from the API server. The status of the rollout is the controller's memory, so it must not be older than its last actions.
	Live     client.Reader
	Mapper   meta.RESTMapper
	Gatherer *gather.Gatherer
	// Images finds images in the cloud.
	Images cloud.ImageSource
	// KubernetesVersion returns the version of the control plane, such as 1.34, which selects the images.
	KubernetesVersion func() (string, error)
	Metrics           *metrics.Metrics
	Recorder          events.EventRecorder
	Clock             clock.PassiveClock
	// Enabled reports whether the controller executes rollouts. If not, their conditions say so.
	Enabled bool
	// Namespace is the namespace of the pods that check GPUs.
	Namespace string
	// CheckImage is the container image of those pods if a rollout sets none.
	CheckImage string
	// Refresh is how long answers of the cloud are reused.
	Refresh time.Duration
}

// Controller reconciles one GPUImageRollout at a time.
type Controller struct {
	Config
	// lookups are about the wanted images, and existence about the images in the statuses.
	lookups, existence answers
}

// New returns a new controller.
func New(config Config) *Controller {
	return &Controller{Config: config, lookups: answers{}, existence: answers{}}
}

// +kubebuilder:rbac:groups=karve.sh,resources=gpuimagerollouts,verbs=get;list;watch
// +kubebuilder:rbac:groups=karve.sh,resources=gpuimagerollouts/status,verbs=patch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:feature=image-rollouts,groups="",namespace=karve-checks,resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	labeled := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.CanaryLabel] != "" }))
	owner := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.GetLabels()[v1alpha1.CanaryLabel]}}}
	})
	return ctrl.NewControllerManagedBy(m).Named("rollout").
		For(&v1alpha1.GPUImageRollout{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, owner, labeled).
		Watches(&corev1.Node{}, owner, labeled).
		Watches(&karpv1.NodeClaim{}, owner, labeled).
		// A machine that is deleted while it starts may have failed because of its image. This is visible only until it is gone.
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.ofClass), builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			return o.GetDeletionTimestamp() != nil
		}))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// ofClass returns requests for the rollouts of a NodeClaim's node class.
func (c *Controller) ofClass(ctx context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || claim.Spec.NodeClassRef == nil {
		return nil
	}
	var all v1alpha1.GPUImageRolloutList
	if err := c.Client.List(ctx, &all); err != nil {
		log.FromContext(ctx).Error(err, "Listing GPUImageRollouts")
		return nil
	}
	var requests []reconcile.Request
	for i := range all.Items {
		if refersTo(claim.Spec.NodeClassRef, all.Items[i].Spec.NodeClassRef) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return requests
}

// Reconcile takes the next step of one rollout.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	r := &v1alpha1.GPUImageRollout{}
	if err := c.Live.Get(ctx, req.NamespacedName, r); err != nil {
		if apierrors.IsNotFound(err) {
			delete(c.lookups, req.Name)
			delete(c.existence, req.Name)
			c.Metrics.ForgetRollout(req.Name)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading GPUImageRollout %s: %w", req.Name, err)
	}
	if !r.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // Kubernetes deletes the objects that it owns. The node class stays as it is.
	}
	w, err := c.observe(ctx, r)
	if err != nil {
		return reconcile.Result{}, err
	}
	result := rollout.Next(r, &w.seen)
	// The status is written before the decision is executed. After a crash the controller then continues, and leaves no canary behind that the status does
	// not name.
	if err := c.remember(ctx, r, result.Status); err != nil {
		return retryAfter(err)
	}
	c.report(ctx, r, &result)
	if err := c.act(ctx, r, w, &result); err != nil {
		return retryAfter(err)
	}
	return reconcile.Result{RequeueAfter: max(result.Again, soon)}, nil
}

// retryAfter turns a conflict or a deletion into a requeue without an error.
func retryAfter(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	return reconcile.Result{}, err
}

func (c *Controller) remember(ctx context.Context, r *v1alpha1.GPUImageRollout, status v1alpha1.GPUImageRolloutStatus) error {
	if equality.Semantic.DeepEqual(r.Status, status) {
		return nil
	}
	stored := r.DeepCopy()
	r.Status = status
	if err := c.Client.Status().Patch(ctx, r, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing the status of GPUImageRollout %s: %w", r.Name, err)
	}
	return nil
}

// report records the events and metrics of a decision.
func (c *Controller) report(ctx context.Context, r *v1alpha1.GPUImageRollout, result *rollout.Result) {
	for _, e := range result.Events {
		kind := corev1.EventTypeNormal
		if e.Warning {
			kind = corev1.EventTypeWarning
		}
		c.Recorder.Eventf(r, nil, kind, e.Reason, "Rollout", "%s", plain.Shorten(e.Message, plain.MaxNote))
		log.FromContext(ctx).Info(e.Message, "reason", e.Reason)
	}
	var age time.Duration
	if current := r.Status.Current; current != nil && current.Created != nil {
		age = c.Clock.Since(current.Created.Time)
	}
	c.Metrics.Rollout(r.Name, metrics.Rollout{
		Step: string(r.Status.Step), Steps: steps, Degraded: meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionDegraded),
		ImageAge: age, Nodes: r.Status.Nodes, Updated: r.Status.NodesUpdated, Distrusted: len(r.Status.Distrusted),
	})
}

var steps = []string{
	string(v1alpha1.StepPending), string(v1alpha1.StepSettled), string(v1alpha1.StepTesting), string(v1alpha1.StepSoaking), string(v1alpha1.StepWaiting), string(v1alpha1.StepRolling),
}
