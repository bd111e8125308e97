package usage

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/advice"
	"karve.sh/karve/pkg/promquery/promquerytest"
)

var from = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)

// series is an answer to queries that begin and contain a text. It has the value where at is true, for a time after the start, or everywhere.
type series struct {
	begins, contains string
	labels           model.Metric
	value            float64
	at               func(time.Duration) bool
}

// read reads the range of a number of hours from a server with the series.
func read(t *testing.T, cluster string, hours int, all ...series) (Found, []string, error) {
	t.Helper()
	p := &promquerytest.Server{}
	for _, x := range all {
		served := promquerytest.Series{Begins: x.begins, Contains: x.contains, Labels: x.labels, Value: x.value}
		if x.at != nil {
			served.At = func(at time.Time) bool { return x.at(at.Sub(from)) }
		}
		p.Series = append(p.Series, served)
	}
	found, err := Read(t.Context(), p.Client(t), Query{From: from, To: from.Add(time.Duration(hours) * time.Hour), Cluster: cluster})
	return found, p.Queries(), err
}

// holds is a pod that holds replicas at some times.
func holds(pod string, at func(time.Duration) bool) series {
	return series{"max by (namespace, pod, nodepool, owner_kind, owner)", held, model.Metric{"namespace": "ml", "pod": model.LabelValue(pod), "nodepool": "t4", "owner_kind": "Deployment", "owner": "chat"}, 0.05, at}
}

func between(low, high time.Duration) func(time.Duration) bool {
	return func(at time.Duration) bool { return at >= low && at < high }
}

func TestPodsRunWhileTheyAreSeen(t *testing.T) {
	t.Parallel()
	later := func(at time.Duration) bool { return at < time.Hour || at >= 2*time.Hour && at < 3*time.Hour }
	found, queries, err := read(t, "", 30, holds("always", nil), holds("twice", later), holds("late", between(28*time.Hour, 99*time.Hour)), holds("at-the-end", between(30*time.Hour, 99*time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]advice.Run{}
	for _, p := range found.Pods {
		got[p.Name] = p.Runs
		if p.Namespace != "ml" || p.Kind != "Deployment" || p.Owner != "chat" || p.Pool != "t4" {
			t.Errorf("%+v", p)
		}
	}
	want := map[string][]advice.Run{
		"always": {{To: 30 * time.Hour}}, "twice": {{To: time.Hour}, {From: 2 * time.Hour, To: 3 * time.Hour}}, "late": {{From: 28 * time.Hour, To: 30 * time.Hour}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(found.Notes) != 4 || found.GPUBusy != -1 || found.Billed != 0 || found.Expired != nil {
		t.Errorf("%+v", found)
	}
	if !strings.Contains(strings.Join(queries, "\n"), `{owner_kind!="DaemonSet"}`) {
		t.Error("pods of DaemonSets count")
	}
}

// TestPodsRunOnWhileNothingIsMeasured has a gap in which no pod is seen.
func TestPodsRunOnWhileNothingIsMeasured(t *testing.T) {
	t.Parallel()
	gap := func(at time.Duration) bool { return at < 5*time.Hour || at >= 7*time.Hour }
	ends := func(at time.Duration) bool { return at < 5*time.Hour }
	found, _, err := read(t, "", 24, holds("stays", gap), holds("ends", ends))
	if err != nil || len(found.Pods) != 2 {
		t.Fatal(found, err)
	}
	if diff := cmp.Diff([][]advice.Run{{{To: 5 * time.Hour}}, {{To: 24 * time.Hour}}}, [][]advice.Run{found.Pods[0].Runs, found.Pods[1].Runs}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUsesAreJoinedOverDays(t *testing.T) {
	t.Parallel()
	pod := model.Metric{"namespace": "ml", "pod": "a"}
	in := func(container string) model.Metric {
		return model.Metric{"namespace": "ml", "pod": "a", "container": model.LabelValue(container)}
	}
	first := func(at time.Duration) bool { return at <= 24*time.Hour }
	second := func(at time.Duration) bool { return at > 24*time.Hour }
	requests := func(name string, value float64) series {
		labels := in("main")
		labels["resource"] = model.LabelValue(name)
		return series{"max by (namespace, pod, container, resource)", requested, labels, value, nil}
	}
	found, queries, err := read(t, "east", 48, holds("a", nil),
		requests("cpu", 1.5), requests("memory", 1<<30), requests("nvidia_com_gpu_shared", 2), requests("nvidia_com_gpu", math.NaN()),
		series{"count_over_time((max by (namespace, pod, container) (rate(", cpu, in("main"), 100, first}, series{"count_over_time((max by (namespace, pod, container) (rate(", cpu, in("main"), 300, second},
		series{"avg_over_time((max by (namespace, pod, container) (rate(", cpu, in("main"), 0.2, first}, series{"avg_over_time((max by (namespace, pod, container) (rate(", cpu, in("main"), 0.4, second},
		series{"max_over_time((max by (namespace, pod, container) (rate(", cpu, in("main"), 2, nil},
		series{"quantile_over_time(0.95, (max by (namespace, pod, container) (rate(", cpu, in("main"), 0.5, first}, series{"quantile_over_time(0.95, (max by (namespace, pod, container) (rate(", cpu, in("main"), 0.3, second},
		series{"count_over_time((sum by (namespace, pod)", " unless on (gpu)", pod, 200, nil}, series{"quantile_over_time(0.95, (sum by (namespace, pod)", " unless on (gpu)", pod, 0.25, nil},
		series{"count_over_time((sum by (namespace, pod)", " and on (gpu) (max by (gpu)", pod, 40, nil},
		series{"count_over_time((sum by (namespace, pod)", "", model.Metric{"namespace": "ml", "pod": "stranger"}, 40, nil},
		series{"sum_over_time((sum(max by (node)", "karve_node_usd_per_hour", model.Metric{}, 48 * 12, nil},
		series{"avg_over_time((avg(max by (gpu)", gpuBusy, model.Metric{}, 0.4, nil},
		series{"sum by (nodepool) (increase(", `reason="Expiring"`, model.Metric{"nodepool": "t4"}, 17, nil},
	)
	if err != nil || len(found.Pods) != 1 {
		t.Fatal(found, err)
	}
	p := found.Pods[0]
	if diff := cmp.Diff(advice.Use{Samples: 400, Mean: 0.35, P95: 0.5, Max: 2}, p.Containers["main"].CPU, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); diff != "" {
		t.Errorf("CPU (-want +got):\n%s", diff)
	}
	if p.GPU.Busy.Samples != 400 || p.GPU.Busy.P95 != 0.25 || p.GPU.Contended != 80 || p.GPU.Bytes.Samples != 0 {
		t.Errorf("%+v", p.GPU)
	}
	main := p.Requests["main"]
	if main.Cpu().MilliValue() != 1500 || main.Memory().Value() != 1<<30 || main.Name("nvidia.com/gpu.shared", resource.DecimalSI).Value() != 2 || len(main) != 3 {
		t.Errorf("%v", main)
	}
	if found.Billed != 48_000_000 || found.GPUBusy != 0.4 || found.Expired["t4"] != 17 {
		t.Errorf("%+v", found)
	}
	if len(found.Notes) != 2 || !strings.Contains(strings.Join(found.Notes, "; "), memory) || strings.Contains(strings.Join(found.Notes, "; "), cpu) {
		t.Errorf("%q", found.Notes)
	}
	for _, query := range queries {
		if !strings.Contains(query, `cluster="east"`) {
			t.Errorf("a query is about all clusters: %s", query)
		}
	}
}

func TestWhatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	if _, _, err := read(t, "", 24); err == nil || !strings.Contains(err.Error(), "Prometheus at a test has no karve_pod_usd_per_hour from 2026-10-01 00:00:00 to 2026-10-02 00:00:00") {
		t.Error(err)
	}
	one := func(name string) series {
		return series{"count by (cluster)", held, model.Metric{"cluster": model.LabelValue(name)}, 1, nil}
	}
	if _, _, err := read(t, "", 24, one("east"), one("")); err == nil || !strings.HasSuffix(err.Error(), "choose one with --cluster-label: (without the label cluster), east") {
		t.Error(err)
	}
}

func TestResourcesHaveTheirNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]corev1.ResourceName{
		"cpu": "cpu", "memory": "memory", "nvidia_com_gpu": "nvidia.com/gpu", "nvidia_com_gpu_shared": "nvidia.com/gpu.shared", "nvidia_com_mig_1g_shared": "nvidia.com/mig-1g.shared",
	} {
		if got := nameOf(text); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

func TestWindowsCoverTheRange(t *testing.T) {
	t.Parallel()
	for hours, want := range map[int]string{1: "1 of 1h0m0s", 24: "1 of 24h0m0s", 25: "2 of 12h30m0s", 168: "7 of 24h0m0s", 100: "5 of 20h0m0s"} {
		if n, length := windows(time.Duration(hours) * time.Hour); fmt.Sprintf("%d of %s", n, length) != want {
			t.Errorf("%d hours are %d windows of %s, want %s", hours, n, length, want)
		}
	}
}
