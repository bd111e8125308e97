package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

func newProgress(made maker) progress {
	duration := func(subsystem, help string) prometheus.Histogram {
		return made.histogram(subsystem, "duration_seconds", help, prometheus.ExponentialBuckets(0.001, 2, 16))
	}
	return progress{
		LastPlan:          made.gauge("planner", "last_plan_timestamp_seconds", "Time of the latest plan that passed its check. While pods wait, Karve plans at least every ten seconds."),
		OldestPod:         made.gauge("pods", "oldest_waiting_seconds", "Age of the oldest pod that waits for replicas, or 0."),
		GatherSeconds:     duration("gather", "Time to read the state of the cluster."),
		DisruptionSeconds: duration("disruption", "Duration of a pass of the disruption controller."),
		Nominated:         made.counter("pods", "nominated_total", "Nominations written to waiting pods."),
		PodsMoved:         made.counters("pods", "moved_total", "Pods evicted or drained, with room elsewhere, from nodes that Karve deletes.", nodePool, "reason"),
		StepOverruns:      made.counters("planner", "step_overruns_total", "Steps of decisions that took too long and were ended. Each is a bug.", "step"),
		SetAside:          made.gauge("planner", "objects_set_aside", "Objects left out because decisions took too long at them: condition PlanningHealthy."),
		MemoryLimit:       made.gauge("memory", "limit_bytes", "Memory limit of the container, or GOMEMLIMIT if that is smaller, or 0."),
		decisions: made.histograms("decision", "delay_seconds", "Time from the first event of each kind, and from each pending pod, until a controller decides about it.",
			prometheus.ExponentialBuckets(0.01, 2, 14), "controller", "reason"),
		claims: made.gauges("pool", "nodeclaims", "NodeClaims, by state (machines.md).", nodePool, "state"),
		oldest: made.gauges("pool", "nodeclaims_oldest_seconds", "Age of the oldest NodeClaim in each state.", nodePool, "state"),
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
