package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"

	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/promquery/promquerytest"
)

// series is an answer to queries that contain a text: the same value at each time that is asked for.
type series struct {
	contains string
	labels   model.Metric
	value    float64
}

// prometheus returns a server that answers with the series.
func prometheus(all []series) *promquerytest.Server {
	p := &promquerytest.Server{}
	for _, x := range all {
		p.Series = append(p.Series, promquerytest.Series{Contains: x.contains, Labels: x.labels, Value: x.value})
	}
	return p
}

var (
	from    = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	twoHour = cost.Range{From: from, To: from.Add(2 * time.Hour)}
)

// hour is a sum over the five minutes of an hour of what has one value in each.
func hour(value float64) float64 { return value * cost.WindowsPerHour }

// covered are the answers of a Prometheus that has data of each five minutes.
func covered(more ...series) []series {
	return append([]series{{"count_over_time(" + unpriced, model.Metric{"cluster": "east"}, cost.WindowsPerHour}}, more...)
}

func TestALedgerIsMadeOfWhatTheRulesRecord(t *testing.T) {
	t.Parallel()
	share := func(name string) model.Metric {
		return model.Metric{"nodepool": "shared", "gpunodeclass": "t4", "share": model.LabelValue(name)}
	}
	p := prometheus(covered(
		series{"sum_over_time(" + ofPools, share("used"), hour(3)}, series{"sum_over_time(" + ofPools, share("idle"), hour(1)},
		series{"sum_over_time(" + discountIn(ofPools), share("used"), hour(0.5)},
		series{"sum_over_time(" + ofNamespace, model.Metric{"namespace": "research", "nodepool": "shared"}, hour(2)},
		series{"sum_over_time(" + ofNamespace, model.Metric{"namespace": "chat", "nodepool": "shared"}, hour(1)},
		series{"(sum_over_time(" + unpriced, model.Metric{}, hour(2)},
	))
	l, err := Ledger(t.Context(), p.Client(t), Query{Range: twoHour, By: cost.Grouping{Dimension: cost.ByNamespace}, Cluster: "east", Now: twoHour.To})
	if err != nil {
		t.Fatal(err)
	}
	// Two hours of $4, of which $3 are used 2 to 1. List prices are those with the discount.
	if l.Total != 8_000_000 || l.ListTotal != 9_000_000 || l.UnpricedHours != 4 || len(l.Coverage.Gaps) > 0 {
		t.Errorf("$%d, by the list $%d, %v machine hours without a price, %+v", l.Total, l.ListTotal, l.UnpricedHours, l.Coverage)
	}
	got := map[cost.Key]int64{}
	for _, row := range l.Rows {
		got[row.Key] = row.Total / 10 // Each part of it is rounded.
	}
	want := map[cost.Key]int64{{Namespace: "research"}: 533_333, {Namespace: "chat"}: 266_666, {Rest: cost.Unknown}: 0} // Nobody has the discount.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, query := range p.Queries() {
		if !strings.Contains(query, `cluster="east"`) {
			t.Errorf("a query is about all clusters: %s", query)
		}
	}
}

func TestUsesAreThoseOfTheGrouping(t *testing.T) {
	t.Parallel()
	used := series{"sum_over_time(" + ofPools, model.Metric{"nodepool": "shared", "gpunodeclass": "t4", "share": "used"}, hour(1)}
	for by, c := range map[string]struct {
		metric string
		labels model.Metric
		want   cost.Key
	}{
		"owner":      {ofOwners, model.Metric{"namespace": "ml", "owner_kind": "Job", "owner": "train", "nodepool": "shared"}, cost.Key{Namespace: "ml", Kind: "Job", Name: "train"}},
		"label:team": {ofLabels + `{label="team"`, model.Metric{"value": "a", "nodepool": "shared"}, cost.Key{Name: "a"}},
		"pool":       {"never asked", nil, cost.Key{Name: "shared"}},
		"class":      {"never asked", nil, cost.Key{Name: "t4"}},
	} {
		grouping, err := cost.ParseGrouping(by)
		if err != nil {
			t.Fatal(err)
		}
		p := prometheus(covered(used, series{"sum_over_time(" + c.metric, c.labels, hour(1)}))
		l, err := Ledger(t.Context(), p.Client(t), Query{Range: twoHour, By: grouping, Now: twoHour.To})
		if err != nil || len(l.Rows) != 1 || l.Rows[0].Key != c.want || l.Total != 2_000_000 {
			t.Errorf("by %s: %+v, %v", by, l, err)
		}
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	cluster := func(name string) model.Metric { return model.Metric{"cluster": model.LabelValue(name)} }
	has := func(d Data) series { return series{"last_over_time(" + raw, model.Metric{}, float64(d)} }
	used := series{"sum_over_time(" + ofPools, model.Metric{"nodepool": "shared", "share": "used"}, hour(1)}
	for name, c := range map[string]struct {
		series  []series
		by      string
		cluster string
		want    string
	}{
		"nothing of Karve":   {nil, "namespace", "", "has no metrics of Karve"},
		"no recording rules": {[]series{has(Exported)}, "namespace", "", "but none of cluster:karve_cost_unpriced_machines:max5m"},
		"another range":      {[]series{has(Recorded)}, "namespace", "", "has no data of Karve from 2026-10-01 00:00 to 2026-10-01 02:00 UTC: choose another range"},
		"several clusters": {
			[]series{{"count_over_time(" + unpriced, cluster("east"), 12}, {"count_over_time(" + unpriced, cluster(""), 12}},
			"namespace", "",
			"has the costs of several clusters, choose one with --cluster-label: (without the label cluster), east",
		},
		"another cluster":   {[]series{{"count by (cluster) (last_over_time(", cluster("west"), 1}}, "namespace", "east", "has no costs of the cluster east, only of west"},
		"no namespaces":     {covered(used), "namespace", "", "without namespace:karve_cost_usd_per_hour:avg5m: install all recording rules"},
		"an unknown label":  {covered(used), "label:team", "", "no costs are recorded for the label team"},
		"nothing of owners": {covered(used), "owner", "", "without owner:karve_cost_usd_per_hour:avg5m"},
	} {
		grouping, err := cost.ParseGrouping(c.by)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Ledger(t.Context(), prometheus(c.series).Client(t), Query{Range: twoHour, By: grouping, Cluster: c.cluster, Now: twoHour.To})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	p := prometheus(covered(used))
	p.Late = time.Hour
	if _, err := Ledger(t.Context(), p.Client(t), Query{Range: twoHour, By: cost.Grouping{Dimension: cost.ByPool}, Now: twoHour.To}); err == nil || !strings.Contains(err.Error(), "answers with a time that was not asked for") {
		t.Errorf("other times: %v", err)
	}
}

func TestDataSaysHowMuchThereIs(t *testing.T) {
	t.Parallel()
	for want, all := range map[Data][]series{Nothing: nil, Exported: {{raw, model.Metric{}, 1}}, Recorded: {{raw, model.Metric{}, 2}}} {
		if got, err := DataOf(t.Context(), prometheus(all).Client(t), from); got != want || err != nil {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
}

func TestChunksHaveSpansOfOneLength(t *testing.T) {
	t.Parallel()
	span := func(hours ...int) (all []cost.Range) {
		at := from
		for _, n := range hours {
			next := at.Add(time.Duration(n) * time.Hour)
			all, at = append(all, cost.Range{From: at, To: next}), next
		}
		return all
	}
	for _, c := range []struct {
		hours []int
		most  int
		want  []string
	}{
		{nil, 3, nil}, {[]int{1, 1}, 3, []string{"0: 2"}}, {[]int{1, 1, 1, 1}, 3, []string{"0: 3", "3: 1"}}, {[]int{7, 24, 24, 5}, 16, []string{"0: 1", "1: 2", "3: 1"}}, {[]int{1, 1}, 1, []string{"0: 1", "1: 1"}},
	} {
		var got []string
		for _, chunk := range chunksOf(span(c.hours...), c.most) {
			got = append(got, fmt.Sprintf("%d: %d", chunk.from, len(chunk.all)))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v, at most %d:\n%s", c.hours, c.most, diff)
		}
	}
}
