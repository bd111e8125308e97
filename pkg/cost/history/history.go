// Package history reads from Prometheus what machines have cost. The recording rules of the chart write it.
package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/promquery"
)

// Metrics that the recording rules write. unpriced has a sample for each five minutes with data.
const (
	unpriced    = "cluster:karve_cost_unpriced_machines:max5m"
	ofPools     = "nodepool:karve_cost_usd_per_hour:avg5m"
	ofNamespace = "namespace:karve_cost_usd_per_hour:avg5m"
	ofOwners    = "owner:karve_cost_usd_per_hour:avg5m"
	ofLabels    = "label:karve_cost_usd_per_hour:avg5m"
	// ofPods and raw are exported by the controller.
	ofPods = "karve_pod_usd_per_hour"
	raw    = "karve_cost_unpriced_machines"
)

// Query is what to read.
type Query struct {
	Range cost.Range
	By    cost.Grouping
	// Cluster is the label cluster of the metrics. It may be "" if the Prometheus has those of a single cluster.
	Cluster string
	// Now is the time, for errors that say what there is.
	Now time.Time
}

const parallel = 4

// Data is how much of what Ledger needs a Prometheus has.
type Data int

// What a Prometheus has: nothing of Karve, what the controller exports, or also what the recording rules write.
const (
	Nothing Data = iota
	Exported
	Recorded
)

// DataOf returns how much of what Ledger needs a Prometheus has.
func DataOf(ctx context.Context, p *promquery.Client, now time.Time) (Data, error) {
	found, err := p.At(ctx, "0 * count(last_over_time("+unpriced+"[366d])) + 2 or 0 * count(last_over_time("+raw+"[1d])) + 1", now)
	if err != nil || len(found) == 0 {
		return Nothing, err
	}
	return Data(found[0].Value), nil
}

// Ledger returns the ledger of what was measured.
func Ledger(ctx context.Context, p *promquery.Client, q Query) (*cost.Ledger, error) {
	measured, err := read(ctx, p, q)
	if err != nil {
		return nil, err
	}
	return cost.Build(measured, q.By), nil
}

func read(ctx context.Context, p *promquery.Client, q Query) (cost.Measured, error) {
	m := cost.Measured{Range: q.Range}
	cluster, windows, unpricedHours, err := coverage(ctx, p, q)
	if err != nil {
		return m, err
	}
	m.Coverage, m.UnpricedHours = cost.CoverageOf(q.Range, windows), unpricedHours
	r := reader{p: p, cluster: cluster}
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	questions := r.of(q.By)
	answers := make([][][]found, len(questions))
	for i, asked := range questions {
		chunks := chunksOf(q.Range.Spans(), asked.limit)
		answers[i] = make([][]found, len(chunks))
		for j, c := range chunks {
			group.Go(func() (err error) {
				answers[i][j], err = r.chunk(inGroup, asked.query, c)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return m, err
	}
	for i, asked := range questions {
		for _, all := range answers[i] {
			for _, f := range all {
				asked.add(&m, f)
			}
		}
	}
	if len(m.Uses) == 0 && usedAnything(&m) {
		return m, withoutUses(q.By)
	}
	return m, nil
}

func usedAnything(m *cost.Measured) bool {
	return slices.ContainsFunc(m.Machines, func(b cost.Machines) bool { return b.For == bill.Used && b.USD > 0 })
}

func withoutUses(by cost.Grouping) error {
	switch by.Dimension {
	case cost.ByPool, cost.ByClass:
		return nil
	case cost.ByLabel:
		return fmt.Errorf("no costs are recorded for the label %s in this range: add it to costLabels of Karve's chart", by.Label)
	default:
		return fmt.Errorf("Prometheus has %s without %s: install all recording rules of Karve's chart", ofPools, recorded(by)) //nolint:staticcheck // It is a name.
	}
}

// recorded returns the metric by which the used part is divided.
func recorded(by cost.Grouping) string {
	switch by.Dimension {
	case cost.ByOwner:
		return ofOwners
	case cost.ByLabel:
		return ofLabels
	default:
		return ofNamespace
	}
}

// coverage returns the cluster, and for each hour of the range how many of its five minutes have data. It returns an error that says what to do if there is none.
func coverage(ctx context.Context, p *promquery.Client, q Query) (cluster string, windows []int, unpricedHours float64, err error) {
	selected := unpriced
	if q.Cluster != "" {
		selected += matchers(equals("cluster", q.Cluster))
	}
	hours := q.Range.Hours()
	windows = make([]int, hours)
	clusters := map[string]bool{}
	for begin := 0; begin < hours; begin += promquery.MaxPoints {
		end := min(hours, begin+promquery.MaxPoints)
		hour := func(i int) time.Time { return q.Range.From.Add(time.Duration(i) * time.Hour) }
		counts, err := p.Range(ctx, "max by (cluster) (count_over_time("+selected+"[1h]))", hour(begin+1), hour(end), time.Hour)
		if err != nil {
			return "", nil, 0, err
		}
		machines, err := p.Range(ctx, "max by (cluster) (sum_over_time("+selected+"[1h]) > 0)", hour(begin+1), hour(end), time.Hour)
		if err != nil {
			return "", nil, 0, err
		}
		for _, s := range counts {
			cluster = string(s.Metric["cluster"])
			clusters[cluster] = true
			for _, v := range s.Values {
				if i := int(v.Timestamp.Time().Sub(q.Range.From)/time.Hour) - 1; i >= 0 && i < hours {
					windows[i] = int(v.Value)
				}
			}
		}
		for _, s := range machines {
			for _, v := range s.Values {
				unpricedHours += float64(v.Value) / cost.WindowsPerHour
			}
		}
	}
	switch len(clusters) {
	case 0:
		return "", nil, 0, nothing(ctx, p, q)
	case 1:
		return cluster, windows, unpricedHours, nil
	}
	return "", nil, 0, fmt.Errorf("Prometheus at %s has the costs of several clusters, choose one with --cluster-label: %s", p.Where, names(clusters)) //nolint:staticcheck // It is a name.
}

func names(clusters map[string]bool) string {
	var all []string
	for name := range clusters {
		if name == "" {
			name = "(without the label cluster)"
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// nothing says why there is no data.
func nothing(ctx context.Context, p *promquery.Client, q Query) error {
	if q.Cluster != "" {
		all, err := p.At(ctx, "count by (cluster) (last_over_time("+unpriced+"[366d]))", q.Range.To)
		if err != nil {
			return err
		}
		clusters := map[string]bool{}
		for _, s := range all {
			clusters[string(s.Metric["cluster"])] = true
		}
		if len(clusters) > 0 && !clusters[q.Cluster] {
			return fmt.Errorf("Prometheus at %s has no costs of the cluster %s, only of %s", p.Where, q.Cluster, names(clusters)) //nolint:staticcheck // It is a name.
		}
	}
	switch has, err := DataOf(ctx, p, q.Now); {
	case err != nil:
		return err
	case has == Recorded:
		return fmt.Errorf("Prometheus at %s has no data of Karve from %s: choose another range", p.Where, q.Range) //nolint:staticcheck // It is a name.
	case has == Exported:
		return fmt.Errorf("Prometheus at %s has the metrics of Karve, but none of %s: install the recording rules (prometheusRule.enabled of Karve's chart). docs/cost.md says how to compute them for the past", p.Where, unpriced) //nolint:staticcheck // It is a name.
	}
	return fmt.Errorf("Prometheus at %s has no metrics of Karve: let it scrape the controller (serviceMonitor.enabled of Karve's chart), or name another one", p.Where) //nolint:staticcheck // It is a name.
}

// found is a value of a series in a span.
type found struct {
	span   int
	labels model.Metric
	value  float64
}

// question is a query for a chunk of spans, and what to do with the answer.
type question struct {
	// query returns the query for spans of a length.
	query func(span time.Duration) string
	// limit is the maximum number of spans in a query.
	limit int
	add   func(*cost.Measured, found)
}

type reader struct {
	p       *promquery.Client
	cluster string
}

const (
	// maxSpans bounds the size of an answer, and lets Prometheus compute several at the same time.
	maxSpans = 16
	// maxSpansOfPods bounds the size of an answer with a series for each pod.
	maxSpansOfPods = 1
)

// of returns what to read for a grouping.
func (r reader) of(by cost.Grouping) []question {
	questions := both(r.over("nodepool, gpunodeclass, share"), ofPools, maxSpans, func(m *cost.Measured, f found, usd, discount float64) {
		m.Machines = append(m.Machines, cost.Machines{
			Span: f.span, Pool: string(f.labels["nodepool"]), Class: string(f.labels["gpunodeclass"]), For: bill.Purpose(f.labels["share"]),
			USD: usd / cost.WindowsPerHour, Discount: discount / cost.WindowsPerHour,
		})
	})
	if by.Dimension == cost.ByPool || by.Dimension == cost.ByClass {
		return questions
	}
	labels, more, key := usesOf(by)
	questions = append(questions, both(r.over(labels, more...), recorded(by), maxSpans, func(m *cost.Measured, f found, usd, discount float64) {
		m.Uses = append(m.Uses, cost.Use{
			Span: f.span, Pool: string(f.labels["nodepool"]), By: key(f.labels),
			USD: usd / cost.WindowsPerHour, Discount: discount / cost.WindowsPerHour,
		})
	})...)
	if by.Dimension != cost.ByPod {
		return questions
	}
	return append(questions, both(r.overPods, ofPods, maxSpansOfPods, func(m *cost.Measured, f found, amount, discount float64) {
		m.Pods = append(m.Pods, cost.PodUse{
			Span: f.span, Pool: string(f.labels["nodepool"]), Namespace: string(f.labels["namespace"]), Pod: string(f.labels["pod"]),
			Amount: amount, Discount: discount,
		})
	})...)
}

// both returns the questions for a price, and for what the cloud's list has more.
func both(query func(metric string, span time.Duration) string, metric string, limit int, add func(m *cost.Measured, f found, usd, discount float64)) []question {
	return []question{
		{func(span time.Duration) string { return query(metric, span) }, limit, func(m *cost.Measured, f found) { add(m, f, f.value, 0) }},
		{func(span time.Duration) string { return query(discountIn(metric), span) }, limit, func(m *cost.Measured, f found) { add(m, f, 0, f.value) }},
	}
}

// discountIn returns the metric with what the cloud's list has more than a price.
func discountIn(metric string) string {
	return strings.NewReplacer("karve_cost_", "karve_cost_discount_", "karve_pod_", "karve_pod_discount_").Replace(metric)
}

// usesOf returns the labels of the metric that divides the used part, more matchers for it, and the key that labels have.
func usesOf(by cost.Grouping) (labels string, more []string, key func(model.Metric) cost.Key) {
	switch by.Dimension {
	case cost.ByOwner:
		return "namespace, owner_kind, owner, nodepool", nil, func(l model.Metric) cost.Key {
			return cost.Key{Namespace: string(l["namespace"]), Kind: string(l["owner_kind"]), Name: string(l["owner"])}
		}
	case cost.ByLabel:
		return "value, nodepool", []string{equals("label", by.Label)}, func(l model.Metric) cost.Key { return cost.Key{Name: string(l["value"])} }
	default:
		return "namespace, nodepool", nil, func(l model.Metric) cost.Key { return cost.Key{Namespace: string(l["namespace"])} }
	}
}

// over returns the query for the sum of a recorded metric over a span. Two Prometheus with the same targets record the same series with different labels, of which the
// larger one has fewer gaps.
func (r reader) over(labels string, more ...string) func(metric string, span time.Duration) string {
	selected := matchers(append(more, equals("cluster", r.cluster))...)
	return func(metric string, span time.Duration) string {
		return "max by (" + labels + ") (sum_over_time(" + metric + selected + "[" + model.Duration(span).String() + "]))"
	}
}

func (r reader) overPods(metric string, span time.Duration) string {
	selected := metric + matchers(equals("cluster", r.cluster), `owner_kind!="DaemonSet"`)
	return "sum by (namespace, pod, nodepool) (sum_over_time(" + selected + "[" + model.Duration(span).String() + "]))"
}

func equals(label, value string) string { return fmt.Sprintf("%s=%q", label, value) }

func matchers(all ...string) string { return "{" + strings.Join(all, ", ") + "}" }

// spans are consecutive spans of the same length, of which the first has the index from.
type spans struct {
	from int
	all  []cost.Range
}

// chunksOf returns the spans in chunks of at most this many with the same length.
func chunksOf(all []cost.Range, limit int) []spans {
	var chunks []spans
	length := func(r cost.Range) time.Duration { return r.To.Sub(r.From) }
	for i, s := range all {
		if n := len(chunks); n > 0 && len(chunks[n-1].all) < limit && length(chunks[n-1].all[0]) == length(s) {
			chunks[n-1].all = append(chunks[n-1].all, s)
			continue
		}
		chunks = append(chunks, spans{i, []cost.Range{s}})
	}
	return chunks
}

// chunk evaluates a query for a chunk.
func (r reader) chunk(ctx context.Context, query func(time.Duration) string, c spans) ([]found, error) {
	first, last := c.all[0], c.all[len(c.all)-1]
	step := first.To.Sub(first.From)
	matrix, err := r.p.Range(ctx, query(step), first.To, last.To, step)
	if err != nil {
		return nil, err
	}
	var all []found
	for _, s := range matrix {
		for _, v := range s.Values {
			i := int(v.Timestamp.Time().Sub(first.To) / step)
			if i < 0 || i >= len(c.all) {
				return nil, errors.New("Prometheus answers with a time that was not asked for") //nolint:staticcheck // It is a name.
			}
			all = append(all, found{c.from + i, s.Metric, float64(v.Value)})
		}
	}
	return all, nil
}
