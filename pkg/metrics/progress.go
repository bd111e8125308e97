package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// progress has the metrics that show whether the controllers make progress.
type progress struct {
	// LastPlan is the time of the latest plan that passed its check. OldestPod is the age of the oldest pending pod.
	LastPlan, OldestPod prometheus.Gauge
	// GatherSeconds is the time to read the cluster. DisruptionSeconds is the time of one reconciliation of the disruption controller.
	GatherSeconds, DisruptionSeconds prometheus.Histogram
	// Nominated counts written nominations, and PodsMoved pods that were moved off nodes that are leaving.
	Nominated prometheus.Counter
	// StepOverruns counts steps of rounds that took too long, and SetAside is the number of objects that are set aside because of that.
	StepOverruns *prometheus.CounterVec
	SetAside     prometheus.Gauge
	PodsMoved    *prometheus.CounterVec
	// MemoryLimit is the memory limit of the controller, in bytes.
	MemoryLimit    prometheus.Gauge
	claims, oldest *prometheus.GaugeVec
	decisions      *prometheus.HistogramVec
}

func newProgress(r prometheus.Registerer) progress {
	made := promauto.With(r)
	duration := func(subsystem, help string) prometheus.Histogram {
		return made.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "duration_seconds", Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		})
	}
	gauge := func(subsystem, name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: "pods", Name: name, Help: help}
	}
	return progress{
		LastPlan:          made.NewGauge(gauge("planner", "last_plan_timestamp_seconds", "Time of the latest plan that passed its check. While pods wait, Karve plans at least every ten seconds.")),
		OldestPod:         made.NewGauge(gauge("pods", "oldest_waiting_seconds", "Age of the oldest pod that waits for replicas, or 0.")),
		GatherSeconds:     duration("gather", "Time to read the state of the cluster."),
		DisruptionSeconds: duration("disruption", "Duration of a pass of the disruption controller."),
		Nominated:         made.NewCounter(counter("nominated_total", "Nominations written to waiting pods.")),
		PodsMoved:         made.NewCounterVec(counter("moved_total", "Pods evicted or drained, with room elsewhere, from nodes that Karve deletes."), []string{nodePool, "reason"}),
		StepOverruns: made.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: "planner", Name: "step_overruns_total",
			Help: "Steps of decisions that took too long and were ended. Each is a bug.",
		}, []string{"step"}),
		SetAside: made.NewGauge(gauge("planner", "objects_set_aside", "Objects left out because decisions took too long at them: condition PlanningHealthy.")),
		MemoryLimit: made.NewGauge(gauge("memory", "limit_bytes",
			"Memory limit of the container, or GOMEMLIMIT if that is smaller, or 0.")),
		decisions: made.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: "decision", Name: "delay_seconds", Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
			Help: "Time from the first event of each kind, and from each pending pod, until a controller decides about it.",
		}, []string{"controller", "reason"}),
		claims: made.NewGaugeVec(gauge("pool", "nodeclaims", "NodeClaims, by state (machines.md)."), []string{nodePool, "state"}),
		oldest: made.NewGaugeVec(gauge("pool", "nodeclaims_oldest_seconds", "Age of the oldest NodeClaim in each state."), []string{nodePool, "state"}),
	}
}

// Claims are the NodeClaims of a NodePool in one state.
type Claims struct {
	Count int
	// Oldest is the age of the oldest one.
	Oldest time.Duration
}

// Claims records the NodeClaims of a NodePool by state.
func (m *Metrics) Claims(pool string, states map[string]Claims) {
	m.forgetClaims(pool)
	for state, c := range states {
		m.claims.WithLabelValues(pool, state).Set(float64(c.Count))
		m.oldest.WithLabelValues(pool, state).Set(c.Oldest.Seconds())
	}
}

func (m *Metrics) forgetClaims(pool string) {
	for _, g := range []*prometheus.GaugeVec{m.claims, m.oldest} {
		g.DeletePartialMatch(prometheus.Labels{nodePool: pool})
	}
}
