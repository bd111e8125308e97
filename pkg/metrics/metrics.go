// Package metrics holds every metric of the controller.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"karve.sh/karve/pkg/planner"
)

// Deletion is why a NodeClaim was deleted, a label value.
type Deletion string

// Why NodeClaims are deleted.
const (
	DeletionIdle            Deletion = "Idle"
	DeletionNeverLaunched   Deletion = "NeverLaunched"
	DeletionReplicasMissing Deletion = "ReplicasMissing"
)

// Metrics are the metrics of the controller.
type Metrics struct {
	PlanSeconds      prometheus.Histogram
	PlanPrice        prometheus.Gauge
	PlanBound        prometheus.Gauge
	PlanGap          prometheus.Gauge
	PlansRejected    prometheus.Counter
	PodsWaiting      prometheus.Gauge
	podsUnplaced     *prometheus.GaugeVec
	ClaimsCreated    *prometheus.CounterVec
	ClaimsDeleted    *prometheus.CounterVec
	LaunchesRefused  *prometheus.CounterVec
	ReplicasSeconds  *prometheus.HistogramVec
	PoolNodes        *prometheus.GaugeVec
	PoolGPUs         *prometheus.GaugeVec
	PoolReplicas     *prometheus.GaugeVec
	PoolReplicasUsed *prometheus.GaugeVec
	PoolPrice        *prometheus.GaugeVec
	PoolBreaker      *prometheus.GaugeVec
}

const (
	namespace = "karve"
	nodePool  = "nodepool"
)

// New makes the metrics and registers them.
func New(r prometheus.Registerer) *Metrics {
	histogram := func(subsystem, name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}
	}
	gauge := func(subsystem, name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	counter := func(subsystem, name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	pool := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(gauge("pool", name, help), []string{nodePool})
	}
	m := &Metrics{
		PlanSeconds: prometheus.NewHistogram(histogram("planner", "duration_seconds", "Time to make one plan.", prometheus.ExponentialBuckets(0.001, 2, 14))),
		PlanPrice:   prometheus.NewGauge(gauge("planner", "price_usd_per_hour", "Price of the launches of the latest plan, in US dollars an hour.")),
		PlanBound:   prometheus.NewGauge(gauge("planner", "bound_usd_per_hour", "Proven lower bound on the price of the latest plan, in US dollars an hour.")),
		PlanGap: prometheus.NewGauge(gauge("planner", "gap_ratio",
			"How much the latest plan costs above its proven lower bound, as a part of the bound; 0 for a plan that nothing cheaper can replace.")),
		PlansRejected: prometheus.NewCounter(counter("planner", "rejected_plans_total", "Plans that broke a rule and were thrown away; each is a bug.")),
		PodsWaiting:   prometheus.NewGauge(gauge("pods", "waiting", "Pods that wait for replicas.")),
		podsUnplaced:  prometheus.NewGaugeVec(gauge("pods", "unplaced", "Waiting pods that the latest plan has no place for, by reason."), []string{"reason"}),
		ClaimsCreated: prometheus.NewCounterVec(counter("nodeclaims", "created_total", "NodeClaims created."), []string{nodePool, "instance_type", "capacity_type"}),
		ClaimsDeleted: prometheus.NewCounterVec(counter("nodeclaims", "deleted_total", "NodeClaims deleted, by reason."), []string{nodePool, "reason"}),
		LaunchesRefused: prometheus.NewCounterVec(counter("nodeclaims", "refused_total", "Launches that the cloud refused or did not make."),
			[]string{nodePool, "instance_type", "zone", "capacity_type"}),
		ReplicasSeconds: prometheus.NewHistogramVec(histogram("nodes", "replicas_ready_seconds",
			"Time from the creation of a NodeClaim until its Node exposes the replicas that it promised.", prometheus.ExponentialBuckets(1, 2, 12)), []string{nodePool}),
		PoolNodes:        pool("nodes", "Machines of the NodePool, those on their way included."),
		PoolGPUs:         pool("gpus", "Physical GPUs of the NodePool's machines."),
		PoolReplicas:     pool("replicas", "Replicas that the NodePool's machines expose or will expose."),
		PoolReplicasUsed: pool("replicas_used", "Replicas that running pods hold."),
		PoolPrice:        pool("price_usd_per_hour", "Price of the NodePool's machines, in US dollars an hour."),
		PoolBreaker:      pool("breaker_open", "1 while the NodePool launches nothing because its machines do not expose their replicas."),
	}
	r.MustRegister(m.PlanSeconds, m.PlanPrice, m.PlanBound, m.PlanGap, m.PlansRejected, m.PodsWaiting, m.podsUnplaced, m.ClaimsCreated, m.ClaimsDeleted,
		m.LaunchesRefused, m.ReplicasSeconds, m.PoolNodes, m.PoolGPUs, m.PoolReplicas, m.PoolReplicasUsed, m.PoolPrice, m.PoolBreaker)
	return m
}

// Planned records a plan that is about to be carried out.
func (m *Metrics) Planned(plan planner.Plan) {
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

// ForgetPool takes the metrics of a NodePool's machines away that is gone. The counters stay, since they are history.
func (m *Metrics) ForgetPool(pool string) {
	for _, gauge := range []*prometheus.GaugeVec{m.PoolNodes, m.PoolGPUs, m.PoolReplicas, m.PoolReplicasUsed, m.PoolPrice, m.PoolBreaker} {
		gauge.DeleteLabelValues(pool)
	}
}

// USD is an amount of micro-dollars in dollars.
func USD(micro int64) float64 { return float64(micro) / 1e6 }
