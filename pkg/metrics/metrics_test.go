package metrics

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/planner"
)

func gathered(t *testing.T, r *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

func TestPlannedRecordsPricesAndReasons(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := New(r)
	m.Planned(planner.Plan{Price: 1_052_000, Bound: 526_000, Unplaced: []planner.Unplaced{
		{Pod: "a", Refusal: planner.Refusal{Reason: planner.ReasonTooLarge}}, {Pod: "b", Refusal: planner.Refusal{Reason: planner.ReasonTooLarge}},
	}}, time.Unix(1700000000, 0))
	got := gathered(t, r)
	if price, bound := got["karve_planner_price_usd_per_hour"].Metric[0].Gauge.GetValue(), got["karve_planner_bound_usd_per_hour"].Metric[0].Gauge.GetValue(); price != 1.052 || bound != 0.526 {
		t.Errorf("price %v, bound %v; want 1.052 and 0.526", price, bound)
	}
	if gap := got["karve_planner_gap_ratio"].Metric[0].Gauge.GetValue(); gap != 1 {
		t.Errorf("a plan at twice its bound has a gap of %v", gap)
	}
	if f := got["karve_pods_unplaced"]; len(f.Metric) != 1 || f.Metric[0].Gauge.GetValue() != 2 || f.Metric[0].Label[0].GetValue() != "TooLarge" {
		t.Errorf("unplaced is %v, want 2 TooLarge", f)
	}
	m.Planned(planner.Plan{}, time.Unix(1700000000, 0))
	if gap := gathered(t, r)["karve_planner_gap_ratio"].Metric[0].Gauge.GetValue(); gap != 0 {
		t.Errorf("a plan of nothing has a gap of %v", gap)
	}
	if f := gathered(t, r)["karve_pods_unplaced"]; len(f.GetMetric()) != 0 {
		t.Errorf("pods that have found a place are still told of: %v", f)
	}
}

func TestForgetPoolRemovesGauges(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := New(r)
	for _, pool := range []string{"gone", "stays"} {
		for _, g := range []*prometheus.GaugeVec{m.PoolNodes, m.PoolGPUs, m.PoolReplicas, m.PoolReplicasUsed, m.PoolPrice, m.PoolBreaker, m.PoolKarpenter} {
			g.WithLabelValues(pool).Set(1)
		}
	}
	m.OfferingsRefused.WithLabelValues("gone", "InsufficientCapacity").Inc()
	for _, pool := range []string{"gone", "stays"} {
		m.Claims(pool, map[string]Claims{"Launched": {2, time.Minute}})
		m.Limits(pool, map[string]Limit{"nvidia.com/gpu": {20, 4}})
	}
	m.ForgetPool("gone")
	if f := gathered(t, r)["karve_launch_refused_offerings"]; len(f.GetMetric()) != 0 {
		t.Errorf("refusals of a pool that is gone are still told of: %v", f)
	}
	m.ForgetPool("never was")
	pools := 0
	for name, f := range gathered(t, r) {
		if !strings.HasPrefix(name, "karve_pool_") {
			continue
		}
		pools++
		if len(f.Metric) != 1 || f.Metric[0].Label[0].GetValue() != "stays" {
			t.Errorf("%s is %v, want that of the pool that stays", name, f.Metric)
		}
	}
	if pools != 11 {
		t.Errorf("%d gauges of pools, want 11: ForgetPool has to know them all", pools)
	}
}

func TestClaimsReplaceGaugesOfFormerStates(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := New(r)
	m.Claims("pool", map[string]Claims{"Requested": {3, time.Minute}, "Started": {1, time.Hour}})
	m.Claims("pool", map[string]Claims{"Launched": {2, 90 * time.Second}})
	got := gathered(t, r)
	for name, want := range map[string]float64{"karve_pool_nodeclaims": 2, "karve_pool_nodeclaims_oldest_seconds": 90} {
		f := got[name]
		if len(f.Metric) != 1 || f.Metric[0].Gauge.GetValue() != want || f.Metric[0].Label[1].GetValue() != "Launched" {
			t.Errorf("%s is %v, want %v of the state Launched", name, f.Metric, want)
		}
	}
}

func TestMetricNamesHaveUnits(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := New(r)
	for _, c := range []*prometheus.CounterVec{m.ClaimsDeleted} {
		c.WithLabelValues("pool", string(DeletionIdle)).Inc()
	}
	m.ClaimsCreated.WithLabelValues("pool", "g4dn.xlarge", "spot").Inc()
	m.LaunchesRefused.WithLabelValues("pool", "spot", "InsufficientCapacity").Inc()
	m.OfferingsRefused.WithLabelValues("pool", "InsufficientCapacity").Inc()
	m.ReplicasSeconds.WithLabelValues("pool").Observe(1)
	m.PodsMoved.WithLabelValues("pool", "Drifted").Inc()
	m.Claims("pool", map[string]Claims{"Requested": {1, time.Second}})
	m.PodsWait.WithLabelValues("pool").Observe(1)
	m.OverOnePlan.WithLabelValues().Set(1)
	valid := regexp.MustCompile(`^karve_(build_info$|planner|pods|nodeclaims|launch|nodes|pool|fleet|layout|gather|disruption|memory)(_[a-z_]+)?$`)
	for name, f := range gathered(t, r) {
		if !valid.MatchString(name) || f.GetHelp() == "" {
			t.Errorf("%s: %q", name, f.GetHelp())
		}
		if counter := f.GetType() == dto.MetricType_COUNTER; counter != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, f.GetType())
		}
		if f.GetType() == dto.MetricType_HISTOGRAM && !strings.HasSuffix(name, "_seconds") {
			t.Errorf("%s has no unit", name)
		}
	}
}

func TestABillHasASeriesForEachNodeAndEachPodThatHoldsReplicasAndAddsUp(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := New(r)
	for _, name := range []string{"karve_node_usd_per_hour", "karve_node_idle_usd_per_hour", "karve_pod_usd_per_hour", "karve_cost_unpriced_machines"} {
		if f := gathered(t, r)[name]; f != nil {
			t.Errorf("a controller that stands by reports %v", f)
		}
	}
	node := bill.Node{
		Name: "n1", NodePool: "gpu", InstanceType: "g4dn.xlarge", CapacityType: "spot", Zone: "us-east-1a", MicroUSDPerHour: 526_000, ListMicroUSDPerHour: 626_000, Replicas: 10,
		GPUNodeClass: "t4", TakesPods: true, Holders: []bill.Holder{
			{Namespace: "team", Name: "a", Owner: bill.Owner{Kind: "Deployment", Name: "serve"}, Labels: []string{"red"}, Replicas: 3},
			{Namespace: "team", Name: "b", Owner: bill.Owner{Kind: "Deployment", Name: "serve"}, Labels: []string{""}, Replicas: 1},
		},
	}
	starting := bill.Node{NodePool: "gpu", GPUNodeClass: "t4", MicroUSDPerHour: 526_000, Replicas: 10}
	m.Bill([]string{"team"}, func() []bill.Node { return []bill.Node{node, node, starting, {NodePool: "gpu"}} })
	got := gathered(t, r)
	want := map[string][]string{
		// Labels are sorted by name: capacity_type, instance_type, node, nodepool, zone.
		"karve_node_usd_per_hour":       {"spot g4dn.xlarge n1 gpu us-east-1a 0.526"},
		"karve_node_idle_usd_per_hour":  {"n1 gpu 0.3156"},
		"karve_pod_usd_per_hour":        {"team n1 gpu serve Deployment a 0.1578", "team n1 gpu serve Deployment b 0.0526"},
		"karve_cost_usd_per_hour":       {"t4 gpu idle 0.3156", "t4 gpu overhead 0.526", "t4 gpu used 0.2104"},
		"karve_cost_owner_usd_per_hour": {"team gpu serve Deployment 0.2104"},
		"karve_cost_label_usd_per_hour": {"team gpu  0.0526", "team gpu red 0.1578"},
		"karve_cost_unpriced_machines":  {"1"},

		"karve_pod_discount_usd_per_hour":        {"team n1 gpu serve Deployment a 0.03", "team n1 gpu serve Deployment b 0.01"},
		"karve_cost_discount_usd_per_hour":       {"t4 gpu idle 0.06", "t4 gpu used 0.04"},
		"karve_cost_owner_discount_usd_per_hour": {"team gpu serve Deployment 0.04"},
		"karve_cost_label_discount_usd_per_hour": {"team gpu  0.01", "team gpu red 0.03"},
	}
	for name, lines := range want {
		var told []string
		for _, metric := range got[name].GetMetric() {
			var line []string
			for _, l := range metric.GetLabel() {
				line = append(line, l.GetValue())
			}
			told = append(told, strings.Join(append(line, strconv.FormatFloat(metric.GetGauge().GetValue(), 'f', -1, 64)), " "))
		}
		if diff := cmp.Diff(lines, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	m.Bill([]string{"team"}, func() []bill.Node { return nil })
	if f := gathered(t, r)["karve_pod_usd_per_hour"]; f != nil {
		t.Errorf("pods that are gone still pay: %v", f)
	}
}

func TestALimitThatIsGoneHasNoSeries(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := New(r)
	m.Limits("gpu", map[string]Limit{"nvidia.com/gpu": {20, 4}, "cpu": {100, 32}})
	m.Limits("gpu", map[string]Limit{"nvidia.com/gpu": {21, 5}})
	for name, want := range map[string]float64{"karve_pool_limit": 21, "karve_pool_limit_used": 5} {
		if f := gathered(t, r)[name]; len(f.GetMetric()) != 1 || f.Metric[0].Gauge.GetValue() != want {
			t.Errorf("%s is %v, want %v of one resource", name, f, want)
		}
	}
}
