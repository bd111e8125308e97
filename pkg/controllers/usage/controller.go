// Package usage tells of machines whose GPUs nobody uses, though pods hold their replicas, and evicts pods that want to be evicted then.
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
	"karve.sh/karve/pkg/controllers/gather"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/nodecontract"
)

const (
	// often is how close together two looks may be: each machine with such pods confirms every five minutes that it still has them.
	often = 10 * time.Second
	// seldom is how long passes between two looks when nothing asks for one: budgets open.
	seldom = time.Minute
)

// Config is what the controller needs.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.Clock
}

// Controller looks at all machines together.
type Controller struct {
	Config
	last time.Time
	// told is what was told of Nodes and pods, so that an event marks a change.
	told map[subject]string
}

// subject is what an event is about, and which kind of event.
type subject struct {
	uid  types.UID
	step step
}

// New makes the controller.
func New(config Config) *Controller { return &Controller{Config: config, told: map[subject]string{}} }

// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	return ctrl.NewControllerManagedBy(m).Named("usage").
		Watches(&corev1.Node{}, one, builder.WithPredicates(saysOfUse())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// saysOfUse lets Nodes of ours through that begin to say something else of unused replicas.
func saysOfUse() predicate.Predicate {
	said := func(o client.Object) string { return o.GetAnnotations()[nodecontract.UnusedSinceAnnotation] }
	return predicate.And(
		predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.GPUNodeClassLabel] != "" }),
		predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return said(e.Object) != "" },
			UpdateFunc: func(e event.UpdateEvent) bool { return said(e.ObjectOld) != said(e.ObjectNew) },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		},
	)
}

// Reconcile looks at all machines, tells what is new, and evicts.
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
	told := map[subject]string{}
	for _, a := range decide(s) {
		errs = append(errs, c.act(ctx, a, told))
	}
	c.told = told // What is not so any more is told again when it comes back.
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: seldom}, nil
}

func (c *Controller) observe(ctx context.Context) (state, error) {
	cluster, err := c.Gatherer.Recent(ctx)
	if err != nil {
		return state{}, fmt.Errorf("reading the cluster: %w", err)
	}
	evictions, err := karpenter.NewEvictions(ctx, c.Client, c.Clock)
	if err != nil {
		return state{}, err
	}
	s := state{now: cluster.Now, machines: cluster.Machines(), classes: map[string]*v1alpha1.GPUNodeClass{}, blocker: evictions.Blocker}
	for i := range cluster.GPUNodeClasses {
		s.classes[cluster.GPUNodeClasses[i].Name] = &cluster.GPUNodeClasses[i]
	}
	return s, nil
}
