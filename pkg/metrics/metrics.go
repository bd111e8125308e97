// Package metrics defines all metrics of the controller.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
)

// Deletion is the label value for why a NodeClaim was deleted.
type Deletion string

// Reasons for which NodeClaims are deleted.
const (
	DeletionIdle            Deletion = "Idle"
	DeletionNeverLaunched   Deletion = "NeverLaunched"
	DeletionReplicasMissing Deletion = "ReplicasMissing"
	DeletionNotInitialized  Deletion = "NotInitialized"
	DeletionGroupIncomplete Deletion = "GroupIncomplete"
	DeletionNodeMissing     Deletion = "NodeMissing"
)

// Replacement is the label value for the result of replacing a machine.
type Replacement string

// Results of replacing a machine.
const (
	ReplacementBegun   Replacement = "Begun"
	ReplacementDone    Replacement = "Done"
	ReplacementStopped Replacement = "Stopped"
	ReplacementGivenUp Replacement = "GivenUp"
)

// Step is the label value for the result of a step to a cheaper layout.
type Step string

// Results of steps. A step is refused if it would save nothing or its pods would have no room.
const (
	StepBegun   Step = "Begun"
	StepRefused Step = "Refused"
)

// Metrics has the metrics of the controller.
type Metrics struct {
	PlanSeconds      prometheus.Histogram
	PlanPrice        prometheus.Gauge
	PlanBound        prometheus.Gauge
	PlanGap          prometheus.Gauge
	PlansRejected    prometheus.Counter
	classesSetAside  *prometheus.CounterVec
	PodsWaiting      prometheus.Gauge
	podsUnplaced     *prometheus.GaugeVec
	ClaimsCreated    *prometheus.CounterVec
	ClaimsDeleted    *prometheus.CounterVec
	LaunchesRefused  *prometheus.CounterVec
	OfferingsRefused *prometheus.GaugeVec
	LaunchWindow     prometheus.Gauge
	ReplicasSeconds  *prometheus.HistogramVec
	PoolNodes        *prometheus.GaugeVec
	PoolGPUs         *prometheus.GaugeVec
	PoolReplicas     *prometheus.GaugeVec
	PoolReplicasUsed *prometheus.GaugeVec
	PoolPrice        *prometheus.GaugeVec
	PoolListPrice    *prometheus.GaugeVec
	ReplicaPrice     *prometheus.GaugeVec
	ReplicaListPrice *prometheus.GaugeVec
	PoolBreaker      *prometheus.GaugeVec
	PoolHeadroom     *prometheus.GaugeVec
	CatalogRefreshed *prometheus.GaugeVec
	CatalogRefreshes *prometheus.CounterVec
	AWSCalls         *prometheus.CounterVec
	PoolReplacing    *prometheus.GaugeVec
	PoolDrifted      *prometheus.GaugeVec
	Replacements     *prometheus.CounterVec
	NodesUnhealthy   *prometheus.GaugeVec
	LayoutSeconds    prometheus.Histogram
	LayoutPrice      prometheus.Gauge
	LayoutBound      prometheus.Gauge
	Wasted           *prometheus.GaugeVec
	LayoutSteps      *prometheus.CounterVec
	PoolSurplus      *prometheus.GaugeVec
	PoolUnusedNodes  *prometheus.GaugeVec
	PoolUnusedPrice  *prometheus.GaugeVec
	UnusedEvictions  *prometheus.CounterVec
	PoolKarpenter    *prometheus.GaugeVec
	OverOnePlan      *prometheus.GaugeVec
	PodsWait         *prometheus.HistogramVec
	poolLimit        *prometheus.GaugeVec
	poolUsage        *prometheus.GaugeVec
	ReservationSlots *prometheus.GaugeVec
	ReservationFree  *prometheus.GaugeVec
	ReservationRoom  *prometheus.GaugeVec
	ReservationEnd   *prometheus.GaugeVec
	rollouts         rollouts
	bills            *bills
	progress
}

const (
	namespace   = "karve"
	nodePool    = "nodepool"
	reservation = "reservation"
)

// maker creates metrics and registers them.
type maker struct{ factory promauto.Factory }

func (m maker) gauge(subsystem, name, help string) prometheus.Gauge {
	return m.factory.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
}

func (m maker) gauges(subsystem, name, help string, labels ...string) *prometheus.GaugeVec {
	return m.factory.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

func (m maker) counter(subsystem, name, help string) prometheus.Counter {
	return m.factory.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
}

func (m maker) counters(subsystem, name, help string, labels ...string) *prometheus.CounterVec {
	return m.factory.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

func (m maker) histogram(subsystem, name, help string, buckets []float64) prometheus.Histogram {
	return m.factory.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets})
}

func (m maker) histograms(subsystem, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return m.factory.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}, labels)
}

// New creates the metrics and registers them.
func New(r prometheus.Registerer) *Metrics {
	made := maker{promauto.With(r)}
	pool := func(name, help string) *prometheus.GaugeVec { return made.gauges("pool", name, help, nodePool) }
	m := &Metrics{
		PlanSeconds:      made.histogram("planner", "duration_seconds", "Time to compute a plan.", prometheus.ExponentialBuckets(0.001, 2, 14)),
		PlanPrice:        made.gauge("planner", "price_usd_per_hour", "Price of the launches of the latest plan."),
		PlanBound:        made.gauge("planner", "bound_usd_per_hour", "Proven lower bound on the price of the latest plan."),
		PlanGap:          made.gauge("planner", "gap_ratio", "Price of the latest plan over its proven lower bound, minus 1."),
		PlansRejected:    made.counter("planner", "rejected_plans_total", "Plans that failed their check. Each is a bug."),
		classesSetAside:  made.counters("planner", "classes_set_aside_total", "Classes of identical pods that a bug kept out of a plan.", "reason"),
		PodsWaiting:      made.gauge("pods", "waiting", "Pods waiting for replicas."),
		podsUnplaced:     made.gauges("pods", "unplaced", "Waiting pods without a place in the latest plan.", "reason"),
		ClaimsCreated:    made.counters("nodeclaims", "created_total", "NodeClaims created.", nodePool, "instance_type", "capacity_type"),
		ClaimsDeleted:    made.counters("nodeclaims", "deleted_total", "NodeClaims deleted.", nodePool, "reason"),
		LaunchesRefused:  made.counters("launch", "refused_total", "NodeClaims that the cloud refused or did not launch.", nodePool, "capacity_type", "reason"),
		OfferingsRefused: made.gauges("launch", "refused_offerings", "Offerings that Karve avoids after refused launches.", nodePool, "reason"),
		LaunchWindow:     made.gauge("launch", "window_nodeclaims", "NodeClaims that may wait for the cloud at a time."),
		ReplicasSeconds:  made.histograms("nodes", "replicas_ready_seconds", "Time from the creation of a NodeClaim until its Node has the promised replicas.", prometheus.ExponentialBuckets(1, 2, 12), nodePool),
		PoolNodes:        pool("nodes", "Nodes, including those being launched."),
		PoolGPUs:         pool("gpus", "Physical GPUs of the nodes."),
		PoolReplicas:     pool("replicas", "Replicas that the nodes have or will have."),
		PoolReplicasUsed: pool("replicas_used", "Replicas that running pods hold."),
		PoolPrice:        pool("price_usd_per_hour", "Price of the nodes."),
		PoolListPrice:    pool("list_price_usd_per_hour", "Price of the nodes in the cloud's list."),
		ReplicaPrice:     made.gauges("pool", "replica_usd_per_hour", "Lowest price of a replica on a new node all of whose replicas are held.", replicaOf...),
		ReplicaListPrice: made.gauges("pool", "replica_list_usd_per_hour", "Price of the same replica in the cloud's list.", replicaOf...),
		PoolBreaker:      pool("breaker_open", "1 while the NodePool launches nothing because its nodes do not start or have no replicas, 0.5 while a node probes it."),
		PoolHeadroom:     made.gauges("pool", "headroom_replicas", "Replicas to keep free (wanted), and those of them free on started nodes (free).", nodePool, "state"),
		CatalogRefreshed: made.gauges("catalog", "refreshed_timestamp_seconds", "When a part of the catalog was last read from AWS.", "source"),
		CatalogRefreshes: made.counters("catalog", "refreshes_total", "Attempts to read a part of the catalog from AWS.", "source", "result"),
		AWSCalls:         made.counters("aws", "calls_total", "Calls to AWS APIs.", "service", "action", "code"),
		PoolReplacing:    pool("replacing", "Nodes that Karve deletes once their pods have room elsewhere."),
		PoolDrifted:      pool("drifted", "Nodes that have drifted."),
		Replacements:     made.counters("nodes", "replacements_total", "Replacements of nodes.", nodePool, "reason", "result"),
		NodesUnhealthy:   made.gauges("nodes", "unhealthy", "Unhealthy nodes, by condition.", nodePool, "reason"),
		LayoutSeconds:    made.histogram("layout", "duration_seconds", "Time to search for a cheaper layout.", prometheus.ExponentialBuckets(0.001, 2, 12)),
		LayoutPrice:      made.gauge("layout", "price_usd_per_hour", "Price of the nodes whose pods may be moved."),
		LayoutBound:      made.gauge("layout", "bound_usd_per_hour", "Proven lower bound on karve_layout_price_usd_per_hour. Above 250 nodes, for moves within parts of the fleet."),
		Wasted:           made.gauges("layout", "wasted_usd", "What nodes cost too much since a cheaper layout became possible, minus restarts.", "gpunodeclass"),
		LayoutSteps:      made.counters("layout", "steps_total", "Steps to a cheaper layout, Begun or Refused.", nodePool, "result"),
		PoolSurplus:      pool("surplus", "Nodes that the cheapest layout does not need."),
		PoolUnusedNodes:  pool("unused_nodes", "Nodes whose pods hold replicas and do not use the GPUs."),
		PoolUnusedPrice:  pool("unused_usd_per_hour", "Price of the unused nodes."),
		UnusedEvictions:  made.counters("pods", "evicted_unused_total", "Pods evicted because of karve.sh/evict-when-unused.", nodePool),
		PoolKarpenter:    pool("karpenter_usd_per_hour", "Modeled price of Karpenter's packing for all running pods. Compare the sum over all NodePools."),
		OverOnePlan:      made.gauges("fleet", "price_over_one_plan_ratio", "Price of all nodes over that of one plan for all running pods. Computed while no pod waits and no node starts."),
		PodsWait:         made.histograms("pods", "wait_seconds", "Time from the creation of a pod with replicas until it is bound, with scheduling gates.", prometheus.ExponentialBuckets(1, 2, 14), nodePool),
		ReservationSlots: made.gauges("reservation", "slots", "Machines of a capacity reservation or block: used by Karve, by others, or free.", reservation, "instance_type", "zone", "state"),
		ReservationFree:  made.gauges("reservation", "free_usd_per_hour", "List price of the free machines of a reservation, which are paid.", reservation, "instance_type", "zone"),
		ReservationRoom:  made.gauges("reservation", "free_replicas", "Replicas that the free machines of a reservation would have.", reservation, nodePool, "resource"),
		ReservationEnd:   made.gauges("reservation", "end_timestamp_seconds", "When a reservation ends, or the machines of a block are deleted.", reservation, "instance_type", "zone"),
		poolLimit:        made.gauges("pool", "limit", "Limit in spec.limits, in cores, bytes or units.", nodePool, "resource"),
		poolUsage:        made.gauges("pool", "limit_used", "Usage that counts against the limit.", nodePool, "resource"),
	}
	m.rollouts, m.progress, m.bills = newRollouts(made), newProgress(made), newBills(r)
	registerBuild(r)
	return m
}

// Planned records a plan that is about to be executed.
func (m *Metrics) Planned(plan planner.Plan, at time.Time) {
	m.LastPlan.Set(float64(at.Unix()))
	m.PlanPrice.Set(USD(int64(plan.Price)))
	m.PlanBound.Set(USD(int64(plan.Bound)))
	gap := 0.0
	if plan.Bound > 0 {
		gap = float64(plan.Price-plan.Bound) / float64(plan.Bound)
	}
	m.PlanGap.Set(gap)
	m.podsUnplaced.Reset()
	for _, u := range plan.Unplaced {
		m.podsUnplaced.WithLabelValues(string(u.Reason)).Inc()
	}
}

// ClassSetAside counts a class of pods that was left out of a plan.
func (m *Metrics) ClassSetAside(a solve.Aside) {
	reason := "Unsound"
	if a.Invalid {
		reason = "Invalid"
	}
	m.classesSetAside.WithLabelValues(reason).Inc()
}

// ForgetPool deletes the gauges of a NodePool that no longer exists. Counters stay.
func (m *Metrics) ForgetPool(pool string) {
	for _, gauge := range []*prometheus.GaugeVec{
		m.PoolNodes, m.PoolGPUs, m.PoolReplicas, m.PoolReplicasUsed, m.PoolPrice, m.PoolListPrice, m.PoolBreaker, m.PoolReplacing, m.PoolDrifted,
		m.PoolSurplus, m.PoolUnusedNodes, m.PoolUnusedPrice, m.PoolKarpenter,
	} {
		gauge.DeleteLabelValues(pool)
	}
	m.OfferingsRefused.DeletePartialMatch(prometheus.Labels{nodePool: pool})
	m.ReplicaPrices(pool, "", nil)
	m.Limits(pool, nil)
	m.PoolHeadroom.DeletePartialMatch(prometheus.Labels{nodePool: pool})
	m.forgetClaims(pool)
}

// ReplicaPrice is what one replica of a model of GPU costs, in micro-dollars per hour: the price that is paid, and that in the cloud's list.
type ReplicaPrice struct {
	GPUName, CapacityType                string
	MicroUSDPerHour, ListMicroUSDPerHour int64
}

// replicaOf are the labels of prices of replicas. There are as many series as NodePools have models of GPUs, at each capacity type.
var replicaOf = []string{nodePool, "gpunodeclass", "gpu_name", "capacity_type"}

// ReplicaPrices records the prices of a NodePool's replicas.
func (m *Metrics) ReplicaPrices(pool, class string, prices []ReplicaPrice) {
	for _, g := range []*prometheus.GaugeVec{m.ReplicaPrice, m.ReplicaListPrice} {
		g.DeletePartialMatch(prometheus.Labels{nodePool: pool})
	}
	for _, p := range prices {
		m.ReplicaPrice.WithLabelValues(pool, class, p.GPUName, p.CapacityType).Set(USD(p.MicroUSDPerHour))
		m.ReplicaListPrice.WithLabelValues(pool, class, p.GPUName, p.CapacityType).Set(USD(p.ListMicroUSDPerHour))
	}
}

// Limit is a limit of a NodePool and the usage that counts against it, in the base unit of the resource.
type Limit struct{ Limit, Used float64 }

// Limits records the limits of a NodePool by resource.
func (m *Metrics) Limits(pool string, limits map[string]Limit) {
	for _, g := range []*prometheus.GaugeVec{m.poolLimit, m.poolUsage} {
		g.DeletePartialMatch(prometheus.Labels{nodePool: pool})
	}
	for resource, l := range limits {
		m.poolLimit.WithLabelValues(pool, resource).Set(l.Limit)
		m.poolUsage.WithLabelValues(pool, resource).Set(l.Used)
	}
}

// USD converts micro-dollars to dollars.
func USD(micro int64) float64 { return float64(micro) / 1e6 }
