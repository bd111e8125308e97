// Package usage reports machines whose replicas are held by pods that do not use the GPUs, and evicts pods that ask for it.
package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/records"
)

const (
	// often is the shortest interval between two reconciliations. Each machine with unused replicas updates its report every five minutes.
	often = 10 * time.Second
	// seldom is the longest interval. PodDisruptionBudgets may allow evictions later.
	seldom = time.Minute
)

// Config has the dependencies of the controller.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.Clock
}

// Controller reconciles all machines together.
type Controller struct {
	Config
	last time.Time
	// reported is what was reported about Nodes and pods. An event is recorded when it changes.
	reported map[subject]string
}

// subject is the object and the kind of an event.
type subject struct {
	uid  types.UID
	step step
}

// New returns a new controller.
func New(config Config) *Controller {
	return &Controller{Config: config, reported: map[subject]string{}}
}

// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(m).Named("usage").
		Watches(&corev1.Node{}, one, builder.WithPredicates(reportChanged())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// reportChanged selects Karve's Nodes whose report of unused replicas changes.
func reportChanged() predicate.Predicate {
	annotation := func(o client.Object) string { return o.GetAnnotations()[nodecontract.UnusedSinceAnnotation] }
	return predicate.And(
		predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.GPUNodeClassLabel] != "" }),
		predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return annotation(e.Object) != "" },
			UpdateFunc: func(e event.UpdateEvent) bool { return annotation(e.ObjectOld) != annotation(e.ObjectNew) },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		},
	)
}

// Reconcile checks all machines, records events about changes, and evicts pods.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if wait := c.last.Add(often).Sub(c.Clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	c.last = c.Clock.Now()
	s, err := c.observe(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	reported := map[subject]string{}
	for _, a := range decide(s) {
		errs = append(errs, c.act(ctx, a, reported))
	}
	c.reported = reported // A finding that no longer holds is reported again if it returns.
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: seldom}, nil
}

func (c *Controller) observe(ctx context.Context) (state, error) {
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return state{}, fmt.Errorf("reading the cluster: %w", err)
	}
	evictions, err := karpenter.NewEvictions(ctx, c.Client, c.Clock)
	if err != nil {
		return state{}, err
	}
	s := state{now: cluster.Now, machines: records.Machines(cluster), classes: map[string]*v1alpha1.GPUNodeClass{}, blocker: evictions.Blocker}
	for i := range cluster.GPUNodeClasses {
		s.classes[cluster.GPUNodeClasses[i].Name] = &cluster.GPUNodeClasses[i]
	}
	return s, nil
}
