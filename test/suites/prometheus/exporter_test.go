package prometheus

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
)

// controllerWithEverything serves the controller's metrics, each with a series, as if everything that can happen had happened. It returns its address. What others export for
// the controller is here too: controller-runtime, and the client that elects the leader.
func controllerWithEverything(t *testing.T) string {
	t.Helper()
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	leader := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "leader_election_master_status"}, []string{"name"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "controller_runtime_reconcile_errors_total"}, []string{"controller"})
	r.MustRegister(leader, failed, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler := promhttp.HandlerFor(r, promhttp.HandlerOpts{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		leader.WithLabelValues("karve").Set(1)
		failed.WithLabelValues("pool").Inc()
		happen(m)
		handler.ServeHTTP(w, req)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// happen gives each metric of the controller a value, and lets each counter grow.
func happen(m *metrics.Metrics) {
	const pool, capacity = "gpu", "on-demand"
	now := time.Now()
	m.Planned(planner.Plan{Price: 1_052_000, Bound: 1_000_000, Unplaced: []planner.Unplaced{{Pod: "team/a", Refusal: planner.Refusal{Reason: planner.ReasonLimitReached}}}}, now)
	m.ClassSetAside(solve.Aside{Invalid: true})
	m.StepOverruns.WithLabelValues("view").Inc()
	m.Decided("provisioning", map[metrics.Event]time.Time{metrics.Pending: now.Add(-time.Second)}, now)
	m.Claims(pool, map[string]metrics.Claims{"Requested": {Count: 1, Oldest: time.Minute}, "Started": {Count: 2, Oldest: time.Hour}})
	m.Limits(pool, map[string]metrics.Limit{"nvidia.com/gpu": {Limit: 20, Used: 2}})
	m.Rollout("gpu", metrics.Rollout{Step: "Settled", Steps: []string{"Settled"}, ImageAge: time.Hour, Nodes: 2, Updated: 1})
	m.Bill([]string{"team"}, func() []bill.Node {
		return []bill.Node{{
			Name: node, NodePool: pool, InstanceType: "g4dn.xlarge", CapacityType: capacity, Zone: "us-east-1a", MicroUSDPerHour: 526_000, Replicas: 10,
			GPUNodeClass: "t4", ListMicroUSDPerHour: 626_000, TakesPods: true, Holders: []bill.Holder{{Namespace: "team", Name: "a", Owner: bill.Owner{Kind: "Pod", Name: "a"}, Labels: []string{"red"}, Replicas: 3}},
		}}
	})
	for _, h := range []prometheus.Histogram{m.PlanSeconds, m.LayoutSeconds, m.GatherSeconds, m.DisruptionSeconds} {
		h.Observe(0.1)
	}
	for _, h := range []*prometheus.HistogramVec{m.ReplicasSeconds, m.PodsWait} {
		h.WithLabelValues(pool).Observe(60)
	}
	for _, g := range []prometheus.Gauge{m.PodsWaiting, m.OldestPod, m.LaunchWindow, m.LayoutPrice, m.LayoutBound} {
		g.Set(10)
	}
	for _, g := range []*prometheus.GaugeVec{
		m.PoolNodes, m.PoolGPUs, m.PoolReplicas, m.PoolReplicasUsed, m.PoolPrice, m.PoolListPrice, m.PoolBreaker, m.PoolReplacing, m.PoolDrifted, m.PoolSurplus, m.PoolUnusedNodes, m.PoolUnusedPrice, m.PoolKarpenter,
	} {
		g.WithLabelValues(pool).Set(1)
	}
	m.ReplicaPrices(pool, "t4", []metrics.ReplicaPrice{{GPUName: "t4", CapacityType: capacity, MicroUSDPerHour: 52_600, ListMicroUSDPerHour: 52_600}})
	m.ReservationSlots.WithLabelValues("cr-1", "g4dn.xlarge", "us-east-1a", "free").Set(2)
	m.ReservationFree.WithLabelValues("cr-1", "g4dn.xlarge", "us-east-1a").Set(1.052)
	m.ReservationRoom.WithLabelValues("cr-1", pool, "nvidia.com/gpu.shared").Set(20)
	m.ReservationEnd.WithLabelValues("cr-1", "g4dn.xlarge", "us-east-1a").Set(float64(now.Add(time.Hour).Unix()))
	m.OverOnePlan.WithLabelValues().Set(1.02)
	m.PoolHeadroom.WithLabelValues(pool, "wanted").Set(2)
	m.Wasted.WithLabelValues(pool).Set(0.1)
	m.OfferingsRefused.WithLabelValues(pool, "VCPULimitExceeded").Set(1)
	m.NodesUnhealthy.WithLabelValues(pool, "NotReady").Set(1)
	m.CatalogRefreshed.WithLabelValues("spot-prices").Set(float64(now.Unix()))
	for _, c := range []prometheus.Counter{
		m.PlansRejected, m.Nominated, m.ClaimsCreated.WithLabelValues(pool, "g4dn.xlarge", capacity), m.ClaimsDeleted.WithLabelValues(pool, string(metrics.DeletionIdle)),
		m.LaunchesRefused.WithLabelValues(pool, capacity, "VCPULimitExceeded"), m.CatalogRefreshes.WithLabelValues("spot-prices", "AccessDenied"),
		m.AWSCalls.WithLabelValues("EC2", "DescribeInstanceTypes", "AccessDenied"), m.Replacements.WithLabelValues(pool, "Drifted", string(metrics.ReplacementGivenUp)),
		m.LayoutSteps.WithLabelValues(pool, string(metrics.StepBegun)), m.UnusedEvictions.WithLabelValues(pool), m.PodsMoved.WithLabelValues(pool, "Drifted"),
	} {
		c.Inc()
	}
}
