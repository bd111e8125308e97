// Package usage reads from Prometheus what pods with replicas of GPUs have used: from the metrics of Karve's controller and agent, of cAdvisor and of kube-state-metrics.
package usage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/advice"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/promquery"
	"karve.sh/karve/pkg/replay"
)

// Query is what to read.
type Query struct {
	From, To time.Time
	// Cluster is the label cluster of the metrics. It may be "" if the Prometheus has those of a single cluster.
	Cluster string
}

// Found is what was read.
type Found struct {
	Pods []advice.Pod
	// Billed is what the machines cost, in micro-dollars. GPUBusy is the mean share of time in which a GPU ran a kernel, or -1.
	Billed  planner.MicroUSD
	GPUBusy float64
	// Expired is how many pods moved because their machine was about to expire, by NodePool.
	Expired map[string]float64
	// Notes are what is missing.
	Notes []string
}

const (
	// resolution is the time between two samples.
	resolution = replay.Resolution
	// day is the time over which a query computes percentiles, and of which an answer has the pods.
	day = 24 * time.Hour
	// parallel is the number of queries at the same time.
	parallel = 4
	// contended is the use of a GPU from which a pod on it may have wanted more, if another wanted it too. wants is the use from which a pod wants it.
	contended, wants = 0.9, 0.02
)

const (
	held       = "karve_pod_usd_per_hour"
	busy       = "karve_pod_gpu_sm_ratio"
	bytes      = "karve_pod_gpu_memory_used_bytes"
	gpuBusy    = "karve_gpu_utilization_ratio"
	gpuBytes   = "karve_gpu_memory_total_bytes"
	cpu        = "container_cpu_usage_seconds_total"
	memory     = "container_memory_working_set_bytes"
	requested  = "kube_pod_container_resource_requests"
	byPod      = "namespace, pod"
	byReplicas = byPod + ", nodepool, owner_kind, owner"
)

type reader struct {
	p    *promquery.Client
	q    Query
	pods map[string]*advice.Pod
	// seen are the times at which any pod was seen.
	seen map[time.Duration]bool
	at   map[string][]time.Duration
}

// Read returns what pods with replicas have used.
func Read(ctx context.Context, p *promquery.Client, q Query) (Found, error) {
	r := &reader{p: p, q: q, pods: map[string]*advice.Pod{}, seen: map[time.Duration]bool{}, at: map[string][]time.Duration{}}
	if err := r.oneCluster(ctx); err != nil {
		return Found{}, err
	}
	for _, c := range replay.Chunks(q.From, q.To, day) {
		answer, err := p.Range(ctx, fmt.Sprintf("max by (%s) (%s)", byReplicas, r.of(held, `owner_kind!="DaemonSet"`)), c[0], c[1], resolution)
		if err != nil {
			return Found{}, err
		}
		r.addRuns(answer)
	}
	if len(r.pods) == 0 {
		return Found{}, fmt.Errorf("Prometheus at %s has no %s from %s to %s: let it scrape Karve's controller (serviceMonitor.enabled of Karve's chart), or choose another range", //nolint:staticcheck // It is a name.
			p.Where, held, q.From.Format(time.DateTime), q.To.Format(time.DateTime))
	}
	r.finishRuns()
	found := Found{GPUBusy: -1}
	if err := r.requests(ctx); err != nil {
		return found, err
	}
	if err := r.uses(ctx, &found); err != nil {
		return found, err
	}
	if err := r.totals(ctx, &found); err != nil {
		return found, err
	}
	for _, key := range slices.Sorted(maps.Keys(r.pods)) {
		found.Pods = append(found.Pods, *r.pods[key])
	}
	return found, nil
}

func (r *reader) of(metric string, matchers ...string) string {
	if r.q.Cluster != "" {
		matchers = append(matchers, fmt.Sprintf("cluster=%q", r.q.Cluster))
	}
	return metric + "{" + strings.Join(matchers, ", ") + "}"
}

// oneCluster returns an error if the metrics are those of several clusters.
func (r *reader) oneCluster(ctx context.Context) error {
	found, err := r.p.At(ctx, fmt.Sprintf("count by (cluster) (last_over_time(%s[%s]))", r.of(held), model.Duration(r.q.To.Sub(r.q.From))), r.q.To)
	if err != nil || len(found) < 2 {
		return err
	}
	var names []string
	for _, s := range found {
		names = append(names, string(cmp.Or(s.Metric["cluster"], "(without the label cluster)")))
	}
	slices.Sort(names)
	return fmt.Errorf("Prometheus at %s has the pods of several clusters, choose one with --cluster-label: %s", r.p.Where, strings.Join(names, ", ")) //nolint:staticcheck // It is a name.
}

func keyOf(m model.Metric) string { return string(m["namespace"] + "/" + m["pod"]) }

func (r *reader) addRuns(answer model.Matrix) {
	for _, s := range answer {
		key := keyOf(s.Metric)
		if r.pods[key] == nil {
			r.pods[key] = &advice.Pod{
				Namespace: string(s.Metric["namespace"]), Name: string(s.Metric["pod"]), Kind: string(s.Metric["owner_kind"]), Owner: string(s.Metric["owner"]), Pool: string(s.Metric["nodepool"]),
				Containers: map[string]advice.Container{},
			}
		}
		for _, v := range s.Values {
			at := v.Timestamp.Time().Sub(r.q.From)
			r.seen[at] = true
			r.at[key] = append(r.at[key], at)
		}
	}
}

// finishRuns makes runs of the times at which pods were seen. A pod that was seen before and after a time at which no pod was seen runs on.
func (r *reader) finishRuns() {
	all := slices.Sorted(maps.Keys(r.seen))
	next := map[time.Duration]time.Duration{}
	for i := range all[1:] {
		next[all[i]] = all[i+1]
	}
	end := r.q.To.Sub(r.q.From)
	for key, times := range r.at {
		slices.Sort(times)
		times = slices.Compact(times)
		p := r.pods[key]
		for i, at := range times {
			to := min(end, at+resolution)
			if n := len(p.Runs); i > 0 && next[times[i-1]] == at {
				p.Runs[n-1].To = to
			} else if at < to {
				p.Runs = append(p.Runs, advice.Run{From: at, To: to})
			}
		}
		if len(p.Runs) == 0 { // It was seen only as the range ended.
			delete(r.pods, key)
		}
	}
}

func (r *reader) requests(ctx context.Context) error {
	span := model.Duration(r.q.To.Sub(r.q.From))
	answer, err := r.p.At(ctx, fmt.Sprintf("max by (%s, container, resource) (last_over_time(%s[%s])) and on (%s) last_over_time(%s[%s])",
		byPod, r.of(requested, `resource=~"cpu|memory|nvidia_com_.+"`), span, byPod, r.of(held), span), r.q.To)
	if err != nil {
		return err
	}
	for _, s := range answer {
		p := r.pods[keyOf(s.Metric)]
		if p == nil || !(s.Value >= 0 && s.Value < 1<<60) {
			continue
		}
		if p.Requests == nil {
			p.Requests = map[string]corev1.ResourceList{}
		}
		container := string(s.Metric["container"])
		if p.Requests[container] == nil {
			p.Requests[container] = corev1.ResourceList{}
		}
		name, quantity := nameOf(string(s.Metric["resource"])), *resource.NewQuantity(int64(s.Value), resource.BinarySI)
		if name == corev1.ResourceCPU {
			quantity = *resource.NewMilliQuantity(int64(s.Value*1000), resource.DecimalSI)
		}
		p.Requests[container][name] = quantity
	}
	return nil
}

// nameOf returns the resource that kube-state-metrics names in its way, in which any character may be an underscore.
func nameOf(text string) corev1.ResourceName {
	rest, ok := strings.CutPrefix(text, "nvidia_com_")
	if !ok {
		return corev1.ResourceName(text)
	}
	if shared, ok := strings.CutSuffix(rest, "_shared"); ok {
		return corev1.ResourceName("nvidia.com/" + strings.ReplaceAll(shared, "_", "-") + ".shared")
	}
	return corev1.ResourceName("nvidia.com/" + strings.ReplaceAll(rest, "_", "-"))
}

// measure is something that is measured of pods.
type measure struct {
	// instant is an expression for it at a time, and by its labels.
	instant, by string
	add         func(p *advice.Pod, container string, u advice.Use)
	// missing is the note for the case that there is none of it.
	missing string
}

func (r *reader) measures() []measure {
	ours := fmt.Sprintf(" and on (%s) %s", byPod, r.of(held))
	container := `container!="", container!="POD"`
	others := fmt.Sprintf("on (gpu) (max by (gpu) (%s) >= %g and on (gpu) count by (gpu) (max by (%s, gpu) (%s) > %g) > 1)", r.of(gpuBusy), contended, byPod, r.of(busy), wants)
	once := func(metric string) string { return fmt.Sprintf("max by (%s, container, gpu) (%s)", byPod, metric) } // Two Prometheus may have scraped it.
	noAgent := "there is no %s, so there is no advice on sharing GPUs: set metrics.pods of the agent, and node.podMonitor.enabled of Karve's chart"
	noKubelet := "there is no %s, so there is no advice on requests of it: let Prometheus scrape cAdvisor of the kubelets"
	return []measure{
		{fmt.Sprintf("sum by (%s) (%s unless %s)", byPod, once(r.of(busy)), others), byPod, func(p *advice.Pod, _ string, u advice.Use) { p.GPU.Busy = p.GPU.Busy.With(u) }, fmt.Sprintf(noAgent, busy)},
		{fmt.Sprintf("sum by (%s) (%s and %s)", byPod, once(r.of(busy)), others), byPod, func(p *advice.Pod, _ string, u advice.Use) { p.GPU.Contended += u.Samples }, ""},
		{
			fmt.Sprintf("max by (%s) (sum by (%s, gpu) (%s))", byPod, byPod, once(fmt.Sprintf("max_over_time(%s[%s])", r.of(bytes), model.Duration(resolution)))), byPod,
			func(p *advice.Pod, _ string, u advice.Use) { p.GPU.Bytes = p.GPU.Bytes.With(u) }, fmt.Sprintf(noAgent, bytes),
		},
		{
			fmt.Sprintf("max by (%s) (sum by (%s, gpu) (%s) / on (gpu) group_left () max by (gpu) (%s))", byPod, byPod, once(r.of(bytes)), r.of(gpuBytes)), byPod,
			func(p *advice.Pod, _ string, u advice.Use) { p.GPU.Share = p.GPU.Share.With(u) }, "",
		},
		{
			fmt.Sprintf("max by (%s, container) (rate(%s[%s]))%s", byPod, r.of(cpu, container), model.Duration(resolution), ours), byPod + ", container",
			func(p *advice.Pod, container string, u advice.Use) {
				c := p.Containers[container]
				p.Containers[container] = advice.Container{CPU: c.CPU.With(u), Memory: c.Memory}
			}, fmt.Sprintf(noKubelet, cpu),
		},
		{
			fmt.Sprintf("max by (%s, container) (max_over_time(%s[%s]))%s", byPod, r.of(memory, container), model.Duration(resolution), ours), byPod + ", container",
			func(p *advice.Pod, container string, u advice.Use) {
				c := p.Containers[container]
				p.Containers[container] = advice.Container{CPU: c.CPU, Memory: c.Memory.With(u)}
			}, fmt.Sprintf(noKubelet, memory),
		},
	}
}

// windows returns the number of equal windows of the range, and their length.
func windows(span time.Duration) (int, time.Duration) {
	n := int((span + day - 1) / day)
	return n, (span / time.Duration(n)).Truncate(time.Minute)
}

// aggregates are the parts of an advice.Use.
var aggregates = []struct {
	function string
	set      func(*advice.Use, float64)
}{
	{"count_over_time(", func(u *advice.Use, v float64) { u.Samples = int(v) }},
	{"avg_over_time(", func(u *advice.Use, v float64) { u.Mean = v }},
	{"max_over_time(", func(u *advice.Use, v float64) { u.Max = v }},
	{"quantile_over_time(0.95, ", func(u *advice.Use, v float64) { u.P95 = v }},
}

// uses reads what pods used, as aggregates over windows.
func (r *reader) uses(ctx context.Context, found *Found) error {
	n, length := windows(r.q.To.Sub(r.q.From))
	measures := r.measures()
	answers := make([][]model.Matrix, len(measures))
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, m := range measures {
		answers[i] = make([]model.Matrix, len(aggregates))
		for j, a := range aggregates {
			query := fmt.Sprintf("%s(%s)[%s:%s])", a.function, m.instant, model.Duration(length), model.Duration(resolution))
			group.Go(func() (err error) {
				answers[i][j], err = r.p.Range(inGroup, query, r.q.To.Add(-time.Duration(n-1)*length), r.q.To, length)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, m := range measures {
		if len(answers[i][0]) == 0 && m.missing != "" {
			found.Notes = append(found.Notes, m.missing)
		}
		r.addUses(m, answers[i])
	}
	return nil
}

// addUses joins the aggregates of a measure, and adds them to the pods.
func (r *reader) addUses(m measure, answers []model.Matrix) {
	type place struct{ pod, container string }
	type window struct {
		place
		at model.Time
	}
	all := map[window]*advice.Use{}
	for i, answer := range answers {
		for _, s := range answer {
			for _, v := range s.Values {
				w := window{place{keyOf(s.Metric), string(s.Metric["container"])}, v.Timestamp}
				if all[w] == nil {
					all[w] = &advice.Use{}
				}
				aggregates[i].set(all[w], float64(v.Value))
			}
		}
	}
	sums := map[place]advice.Use{}
	for w, u := range all {
		sums[w.place] = sums[w.place].With(*u)
	}
	for at, u := range sums {
		if p := r.pods[at.pod]; p != nil {
			m.add(p, at.container, u)
		}
	}
}

// totals reads what all machines cost, and how busy all GPUs were.
func (r *reader) totals(ctx context.Context, found *Found) error {
	over := fmt.Sprintf("[%s:%s])", model.Duration(r.q.To.Sub(r.q.From)), model.Duration(resolution))
	price, err := r.p.At(ctx, fmt.Sprintf("sum_over_time((sum(max by (node) (%s)))%s", r.of("karve_node_usd_per_hour"), over), r.q.To)
	if err != nil {
		return err
	}
	for _, s := range price {
		found.Billed = planner.MicroUSD(float64(s.Value) * resolution.Hours() * 1e6)
	}
	ratio, err := r.p.At(ctx, fmt.Sprintf("avg_over_time((avg(max by (gpu) (%s)))%s", r.of(gpuBusy), over), r.q.To)
	if err != nil {
		return err
	}
	for _, s := range ratio {
		found.GPUBusy = float64(s.Value)
	}
	moved, err := r.p.At(ctx, fmt.Sprintf("sum by (nodepool) (increase(%s[%s]))", r.of("karve_pods_moved_total", fmt.Sprintf("reason=%q", reason.Expiring)), model.Duration(r.q.To.Sub(r.q.From))), r.q.To)
	if len(moved) > 0 {
		found.Expired = map[string]float64{}
	}
	for _, s := range moved {
		found.Expired[string(s.Metric["nodepool"])] = float64(s.Value)
	}
	return err
}
