// Package pool updates the status of Karve's NodePools and of the GPUNodeClasses. Karpenter does not write the status of NodePools that refer to a node
// class which it does not know, so Karve writes the whole status.
package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/fleet/breaker"
	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/watchdog"
)

const (
	// minRest and maxRest bound the interval between reconciliations while pods and nodes change.
	minRest, maxRest = 500 * time.Millisecond, 2 * time.Second
	// seldom is the longest interval if nothing changes. The cloud's node classes are not watched, and back-offs end.
	seldom = 10 * time.Second
)

// Config has the dependencies and settings of the controller.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Planner  *planning.Planner
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.Clock
	// Tolerations are how long unhealthy machines are tolerated.
	Tolerations repair.Tolerations
	// CostLabels are the labels of pods by whose values metrics divide costs.
	CostLabels []string
}

// Controller reconciles all pools and classes together, because a class sums its pools.
type Controller struct {
	Config
	pace watchdog.Pace
	// measured has the names of the pools that have metrics.
	measured sets.Set[string]
}

// +kubebuilder:rbac:groups=karpenter.sh,resources=nodepools/status,verbs=patch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=patch
// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(m).Named("pool").
		Watches(&karpv1.NodePool{}, one).
		Watches(&v1alpha1.GPUNodeClass{}, one).
		Watches(&karpv1.NodeClaim{}, one).
		Watches(&corev1.Node{}, one, builder.WithPredicates(noHeartbeat)).
		Watches(&corev1.Pod{}, one).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// noHeartbeat selects events of Nodes other than heartbeats, which change no status.
var noHeartbeat = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !facts.Same(e.ObjectOld, e.ObjectNew) }}

// Reconcile updates every status that has changed.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	started := c.Clock.Now()
	if wait := c.pace.Wait(started); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	defer func() { c.pace.Passed(started, c.Clock.Now(), minRest, maxRest) }()
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the cluster: %w", err)
	}
	again := seldom
	var errs []error
	for _, err := range c.report(ctx, cluster) {
		switch {
		case apierrors.IsConflict(err):
			again = minRest // Karpenter also writes the status of NodePools, so retry.
		case !apierrors.IsNotFound(err): // The object was deleted meanwhile.
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// report updates the status of all pools and classes. After an error it continues with the others. It returns all errors.
func (c *Controller) report(ctx context.Context, cluster *facts.Cluster) []error {
	var errs []error
	machines, measured := records.Machines(cluster), sets.New[string]()
	diagnosis, reserves := repair.Diagnose(cluster, machines, c.Tolerations), &headroom.Headroom{}
	if snapshot.WantsHeadroom(cluster) {
		g, err := c.Planner.Of(ctx, cluster)
		if err != nil {
			return []error{err}
		}
		reserves = &g.Headroom(ctx).Headroom
	}
	aside := planningHealthy(c.Gatherer.Watchdog.Entries(), c.Planner.Extended())
	for _, pool := range snapshot.Pools(cluster) {
		name := pool.NodePool.Name
		measured.Insert(name)
		ours := machinesWith(machines, karpv1.NodePoolLabelKey, name)
		for _, err := range []error{
			c.updateHashes(ctx, pool.NodePool, ours),
			c.pool(ctx, cluster, &pool, ours, reserves, nodesHealthy(diagnosis.Pools[name]), aside),
		} {
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	canaries := records.Canaries(cluster)
	c.Metrics.Bill(c.CostLabels, sync.OnceValue(func() []bill.Node { return bills(machines, canaries, c.CostLabels) }))
	slots := records.SlotsOf(cluster, machines, canaries)
	c.measureReservations(slots, snapshot.RoomIn(cluster, slots))
	for gone := range c.measured.Difference(measured) {
		c.Metrics.ForgetPool(gone)
	}
	c.measured = measured
	for i := range cluster.GPUNodeClasses {
		class := &cluster.GPUNodeClasses[i]
		if err := c.class(ctx, cluster, class, machinesWith(machines, v1alpha1.GPUNodeClassLabel, class.Name)); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// machinesWith returns the machines whose NodeClaims have a label with this value.
func machinesWith(machines []records.Machine, key, value string) []records.Machine {
	var some []records.Machine
	for _, m := range machines {
		if m.Claim.Labels[key] == value {
			some = append(some, m)
		}
	}
	return some
}

func (c *Controller) pool(
	ctx context.Context, cluster *facts.Cluster, pool *snapshot.Pool, machines []records.Machine, headroom *headroom.Headroom, others ...status.Condition,
) error {
	stored := pool.NodePool
	np := stored.DeepCopy()
	h := hold(machines, pool.Class, cluster.Now)
	healthy := breaker.Next(facts.Condition(stored.Status.Conditions, v1alpha1.ConditionReplicasHealthy), machines, cluster.Now, cluster.ReplicasTimeout)
	refused := refusedOf(cluster, pool)
	conditions := slices.Concat(others, []status.Condition{healthy, launching(refused), fieldsHonored(pool.Unhonored)})
	c.Metrics.PoolHeadroom.DeletePartialMatch(prometheus.Labels{"nodepool": np.Name})
	if reserve, ok := headroom.Of(np.Name); ok {
		conditions = append(conditions, headroomWarm(pool, reserve))
		c.Metrics.PoolHeadroom.WithLabelValues(np.Name, "wanted").Set(float64(reserve.Wanted))
		c.Metrics.PoolHeadroom.WithLabelValues(np.Name, "free").Set(float64(reserve.Free))
	}
	reportPool(np, pool, h, c.Clock, conditions...)
	c.measure(np.Name, h, healthy)
	c.measureRefused(np.Name, refused)
	if pool.Class != nil {
		var prices []metrics.ReplicaPrice
		for _, p := range pool.ReplicaPrices() {
			prices = append(prices, metrics.ReplicaPrice(p))
		}
		c.Metrics.ReplicaPrices(np.Name, pool.Class.Name, prices)
	}
	c.Metrics.Limits(np.Name, limits(np))
	c.Metrics.Claims(np.Name, byState(machines, cluster.Now, cluster.ReplicasTimeout))
	if equality.Semantic.DeepEqual(stored.Status, np.Status) {
		return nil
	}
	if err := c.Client.Status().Patch(ctx, np, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing the status of NodePool %s: %w", np.Name, err)
	}
	c.recordTransitions(ctx, stored, np)
	return nil
}

// recordTransitions records events and log messages for conditions that changed.
func (c *Controller) recordTransitions(ctx context.Context, before, after *karpv1.NodePool) {
	for _, now := range after.Status.Conditions {
		was := facts.Condition(before.Status.Conditions, now.Type)
		if now.Type == status.ConditionReady || was.GetStatus() == now.Status && (was == nil || was.Reason == now.Reason) {
			continue
		}
		if now.IsFalse() {
			c.Recorder.Eventf(after, nil, corev1.EventTypeWarning, now.Reason, "Check", "%s", plain.Shorten(now.Message, plain.MaxNote))
		}
		log.FromContext(ctx).Info("Condition changed", "nodePool", klog.KObj(after), "condition", now.Type, "status", now.Status, "reason", now.Reason, "message", now.Message)
	}
}

func (c *Controller) class(ctx context.Context, cluster *facts.Cluster, stored *v1alpha1.GPUNodeClass, machines []records.Machine) error {
	class := stored.DeepCopy()
	refused := c.Gatherer.Ledger.ForStatus(class.Name, cluster.Now)
	reportClass(class, cluster.NodeClasses[class.Spec.NodeClassRef], cluster.DRA, hold(machines, stored, cluster.Now), refused, cluster.UnknownFields[class.UID])
	if equality.Semantic.DeepEqual(stored.Status, class.Status) {
		return nil
	}
	if err := c.Client.Status().Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing the status of GPUNodeClass %s: %w", class.Name, err)
	}
	return nil
}

func (c *Controller) measure(pool string, h holding, healthy status.Condition) {
	c.Metrics.PoolNodes.WithLabelValues(pool).Set(float64(h.Nodes))
	c.Metrics.PoolGPUs.WithLabelValues(pool).Set(float64(h.GPUs))
	c.Metrics.PoolReplicas.WithLabelValues(pool).Set(float64(h.Replicas))
	c.Metrics.PoolReplicasUsed.WithLabelValues(pool).Set(float64(h.inUse))
	c.Metrics.PoolPrice.WithLabelValues(pool).Set(metrics.USD(h.microUSDPerHour))
	c.Metrics.PoolListPrice.WithLabelValues(pool).Set(metrics.USD(h.listMicroUSDPerHour))
	c.Metrics.PoolUnusedNodes.WithLabelValues(pool).Set(float64(h.unusedNodes))
	c.Metrics.PoolUnusedPrice.WithLabelValues(pool).Set(metrics.USD(h.unusedMicroUSDPerHour))
	open := 0.0
	switch {
	case healthy.IsFalse():
		open = 1
	case healthy.IsUnknown():
		open = 0.5
	}
	c.Metrics.PoolBreaker.WithLabelValues(pool).Set(open)
}

func (c *Controller) measureReservations(slots []records.Slots, room map[string][]snapshot.Room) {
	for _, g := range []*prometheus.GaugeVec{c.Metrics.ReservationSlots, c.Metrics.ReservationFree, c.Metrics.ReservationRoom, c.Metrics.ReservationEnd} {
		g.Reset()
	}
	for i := range slots {
		s := &slots[i]
		for state, n := range map[string]int64{"used": s.Ours, "free": s.Left, "others": s.Others()} {
			c.Metrics.ReservationSlots.WithLabelValues(s.ID, s.InstanceType, s.Zone, state).Set(float64(n))
		}
		c.Metrics.ReservationFree.WithLabelValues(s.ID, s.InstanceType, s.Zone).Set(metrics.USD(s.Left * s.ListMicroUSDPerHour))
		for _, would := range room[s.ID] {
			c.Metrics.ReservationRoom.WithLabelValues(s.ID, would.NodePool, would.Resource).Set(float64(would.Replicas))
		}
		if until := s.Until(); !until.IsZero() {
			c.Metrics.ReservationEnd.WithLabelValues(s.ID, s.InstanceType, s.Zone).Set(float64(until.Unix()))
		}
	}
}

func (c *Controller) measureRefused(pool string, refused []refusedOffering) {
	c.Metrics.OfferingsRefused.DeletePartialMatch(prometheus.Labels{"nodepool": pool})
	for _, r := range refused {
		c.Metrics.OfferingsRefused.WithLabelValues(pool, cmp.Or(r.by.Reason, v1alpha1.RefusalLaunchFailed)).Inc()
	}
}
