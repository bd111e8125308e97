package cost_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/internal/properties"
)

func at(t testing.TB, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse("2006-01-02T15", text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// october is a measured day and a half: three spans, because it begins and ends within days.
func october(t testing.TB) cost.Measured {
	t.Helper()
	r := cost.Range{From: at(t, "2026-10-01T12"), To: at(t, "2026-10-03T13")}
	return cost.Measured{
		Range: r, Coverage: cost.CoverageOf(r, slices.Repeat([]int{12}, 49)),
		Machines: []cost.Machines{
			{Span: 0, Pool: "big", Class: "a100", For: bill.Used, USD: 30},
			{Span: 0, Pool: "big", Class: "a100", For: bill.Idle, USD: 9},
			{Span: 0, Pool: "small", Class: "t4", For: bill.Used, USD: 3},
			{Span: 0, Pool: "small", Class: "t4", For: bill.Overhead, USD: 1},
			{Span: 1, Pool: "small", Class: "t4", For: bill.Idle, USD: 5}, // Nobody used it.
			{Span: 2, Pool: "small", Class: "l4", For: bill.Used, USD: 2},
			{Span: 2, Pool: "small", Class: "t4", For: bill.Idle, USD: 0.5},
		},
		Uses: []cost.Use{
			{Span: 0, Pool: "big", By: cost.Key{Namespace: "ml"}, USD: 20},
			{Span: 0, Pool: "big", By: cost.Key{Namespace: "web"}, USD: 10},
			{Span: 0, Pool: "small", By: cost.Key{Namespace: "web"}, USD: 3},
			{Span: 2, Pool: "small", By: cost.Key{Namespace: "web"}, USD: 1.5},
		},
		Pods: []cost.PodUse{
			{Span: 0, Pool: "big", Namespace: "ml", Pod: "train", Amount: 1},
			{Span: 0, Pool: "big", Namespace: "web", Pod: "a", Amount: 30},
			{Span: 0, Pool: "big", Namespace: "web", Pod: "b", Amount: 10},
			{Span: 2, Pool: "small", Namespace: "web", Pod: "b", Amount: 7},
		},
	}
}

func row(key cost.Key, used, idle, overhead float64) cost.Row {
	a := cost.Amounts{Used: int64(used * 1e6), Idle: int64(idle * 1e6), Overhead: int64(overhead * 1e6)}
	return cost.Row{Key: key, Amounts: a, Total: a.Total(), List: a, ListTotal: a.Total()}
}

func TestThoseWhoUseAPoolOnADayPayForItsFreeReplicas(t *testing.T) {
	t.Parallel()
	for by, want := range map[string][]cost.Row{
		"namespace": {
			row(cost.Key{Namespace: "ml"}, 20, 6, 0),
			row(cost.Key{Namespace: "web"}, 14.5, 3.375, 1),
			row(cost.Key{Rest: cost.Unused}, 0, 5, 0),
			row(cost.Key{Rest: cost.Unknown}, 0.5, 0.125, 0),
		},
		"pool": {row(cost.Key{Name: "big"}, 30, 9, 0), row(cost.Key{Name: "small"}, 5, 5.5, 1)},
		"class": {
			row(cost.Key{Name: "a100"}, 30, 9, 0), row(cost.Key{Name: "t4"}, 3, 5.5, 1), row(cost.Key{Name: "l4"}, 2, 0, 0),
		},
		"pod": {
			row(cost.Key{Namespace: "ml", Name: "train"}, 20, 6, 0),
			row(cost.Key{Namespace: "web", Name: "a"}, 7.5, 2.25, 0),
			row(cost.Key{Namespace: "web", Name: "b"}, 4, 1.125, 0),
			row(cost.Key{Rest: cost.Unused}, 0, 5, 0),
			row(cost.Key{Namespace: "web", Rest: cost.Unknown}, 3, 0, 1),
			row(cost.Key{Rest: cost.Unknown}, 0.5, 0.125, 0),
		},
	} {
		grouping, err := cost.ParseGrouping(by)
		if err != nil {
			t.Fatal(err)
		}
		l := cost.Build(october(t), grouping)
		if diff := cmp.Diff(want, l.Rows); diff != "" || l.Total != 50_500_000 {
			t.Errorf("by %s: the total is %d (-want +got):\n%s", by, l.Total, diff)
		}
	}
}

func TestListPricesAreDividedLikePrices(t *testing.T) {
	t.Parallel()
	m := october(t)
	m.Machines = append(m.Machines,
		cost.Machines{Span: 0, Pool: "big", Class: "a100", For: bill.Used, Discount: 10}, // A discount of web's half only.
		cost.Machines{Span: 0, Pool: "big", Class: "a100", For: bill.Idle, Discount: 3},
		cost.Machines{Span: 2, Pool: "small", Class: "t4", For: bill.Idle, Discount: -0.1}, // A fee.
		cost.Machines{Span: 1, Pool: "free", Class: "t4", For: bill.Used, Discount: 4},
	)
	m.Uses = append(m.Uses,
		cost.Use{Span: 0, Pool: "big", By: cost.Key{Namespace: "web"}, Discount: 10},
		cost.Use{Span: 1, Pool: "free", By: cost.Key{Namespace: "edu"}, Discount: 4}, // It costs nothing.
	)
	l := cost.Build(m, cost.Grouping{Dimension: cost.ByNamespace})
	list := map[string]cost.Amounts{}
	for _, r := range l.Rows {
		list[r.Namespace+string(r.Rest)] = r.List
	}
	want := map[string]cost.Amounts{
		"ml":      {Used: 20_000_000, Idle: 6_000_000},
		"web":     {Used: 24_500_000, Idle: 6_300_000, Overhead: 1_000_000},
		"unused":  {Idle: 5_000_000},
		"unknown": {Used: 500_000, Idle: 100_000},
		"edu":     {Used: 4_000_000},
	}
	if diff := cmp.Diff(want, list); diff != "" || l.Total != 50_500_000 || l.ListTotal != 67_400_000 || !l.Discounted() {
		t.Errorf("%d, %d (-want +got):\n%s", l.Total, l.ListTotal, diff)
	}
	if l := cost.Build(october(t), cost.Grouping{Dimension: cost.ByNamespace}); l.Discounted() || l.List != l.Totals {
		t.Errorf("without discounts: %+v, %+v", l.List, l.Totals)
	}
}

func TestGroupingsAreParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]cost.Grouping{
		"namespace": {Dimension: cost.ByNamespace}, "pod": {Dimension: cost.ByPod}, "label:app.kubernetes.io/name": {Dimension: cost.ByLabel, Label: "app.kubernetes.io/name"},
	} {
		if got, err := cost.ParseGrouping(text); err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"", "label", "label:", "team", "Namespace"} {
		if _, err := cost.ParseGrouping(wrong); err == nil {
			t.Errorf("%q is no grouping", wrong)
		}
	}
}

// measured draws what may be measured: bills of machines, and shares that may be incomplete or more than the bills.
func measured(t *rapid.T) cost.Measured {
	r := cost.Range{From: time.Date(2026, 1, 1, rapid.IntRange(0, 23).Draw(t, "hour"), 0, 0, 0, time.UTC)}
	r.To = r.From.Add(time.Duration(rapid.IntRange(1, 100).Draw(t, "hours")) * time.Hour)
	m := cost.Measured{Range: r}
	usd := rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1e-6), rapid.Float64Range(0, 30_000), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), -1, 1e-7}))
	less := rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(-100, 30_000), rapid.SampledFrom([]float64{math.NaN(), math.Inf(-1), math.Inf(1), -1e-9}))
	name := func(what string) string { return fmt.Sprint(what, rapid.IntRange(0, 3).Draw(t, what)) }
	for span := range r.Spans() {
		for range rapid.IntRange(0, 6).Draw(t, "machines") {
			m.Machines = append(m.Machines, cost.Machines{
				Span: span, Pool: name("pool"), Class: name("class"), For: rapid.SampledFrom([]bill.Purpose{bill.Used, bill.Idle, bill.Overhead}).Draw(t, "for"), USD: usd.Draw(t, "bill"),
				Discount: less.Draw(t, "discount"),
			})
		}
		for range rapid.IntRange(0, 6).Draw(t, "uses") {
			m.Uses = append(m.Uses, cost.Use{Span: span, Pool: name("pool"), By: cost.Key{Namespace: name("namespace")}, USD: usd.Draw(t, "use"), Discount: less.Draw(t, "discount of a use")})
		}
		for range rapid.IntRange(0, 6).Draw(t, "pods") {
			m.Pods = append(m.Pods, cost.PodUse{Span: span, Pool: name("pool"), Namespace: name("namespace"), Pod: name("pod"), Amount: usd.Draw(t, "held"), Discount: less.Draw(t, "discount of a pod")})
		}
	}
	return m
}

var groupings = []cost.Grouping{{Dimension: cost.ByNamespace}, {Dimension: cost.ByOwner}, {Dimension: cost.ByPool}, {Dimension: cost.ByClass}, {Dimension: cost.ByPod}, {Dimension: cost.ByLabel, Label: "team"}}

// billed adds up the bills of the machines, each rounded to micro-dollars.
func billed(m *cost.Measured) (sum cost.Amounts) {
	for _, b := range m.Machines {
		micro := int64(0)
		if b.USD > 0 {
			micro = int64(math.Round(min(1e8, b.USD) * 1e6))
		}
		switch b.For {
		case bill.Used:
			sum.Used += micro
		case bill.Idle:
			sum.Idle += micro
		case bill.Overhead:
			sum.Overhead += micro
		}
	}
	return sum
}

func addsUp(t *rapid.T) {
	m := measured(t)
	want := billed(&m)
	for _, by := range groupings {
		l := cost.Build(m, by)
		var sum, list cost.Amounts
		for _, r := range l.Rows {
			list = cost.Amounts{Used: list.Used + r.List.Used, Idle: list.Idle + r.List.Idle, Overhead: list.Overhead + r.List.Overhead}
			if r.Used < 0 || r.Idle < 0 || r.Overhead < 0 || r.Total != r.Amounts.Total() || r.Total == 0 && r.ListTotal == 0 || r.List.Used < 0 || r.List.Idle < 0 || r.List.Overhead < 0 || r.ListTotal != r.List.Total() {
				t.Fatalf("by %s: %+v", by, r)
			}
			sum = cost.Amounts{Used: sum.Used + r.Used, Idle: sum.Idle + r.Idle, Overhead: sum.Overhead + r.Overhead}
		}
		if sum != want || l.Totals != want || l.Total != want.Total() {
			t.Fatalf("by %s: the rows are %+v, the totals %+v of %d, and the bills %+v", by, sum, l.Totals, l.Total, want)
		}
		// All groupings have the same list prices.
		if of := cost.Build(m, cost.Grouping{Dimension: cost.ByClass}); list != l.List || l.ListTotal != l.List.Total() || l.List != of.List {
			t.Fatalf("by %s: the rows are %+v in the list, the totals %+v of %d, and the classes %+v", by, list, l.List, l.ListTotal, of.List)
		}
		listed, listCents := l.ListCents()
		for _, c := range listed {
			listCents -= c
		}
		if listCents != 0 {
			t.Fatalf("by %s: %d cents are missing in the list", by, listCents)
		}
		cents, totals := l.Cents()
		var all cost.Cents
		for i, c := range cents {
			all = cost.Cents{Used: all.Used + c.Used, Idle: all.Idle + c.Idle, Overhead: all.Overhead + c.Overhead}
			for exact, shown := range map[int64]int64{l.Rows[i].Used: c.Used, l.Rows[i].Idle: c.Idle, l.Rows[i].Overhead: c.Overhead} {
				if d := exact - shown*10_000; d <= -20_000 || d >= 20_000 {
					t.Fatalf("by %s: %d micro-dollars are shown as %d cents", by, exact, shown)
				}
			}
		}
		if d := l.Total - totals.Total()*10_000; all != totals || d < -5000 || d > 5000 {
			t.Fatalf("by %s: the rows are %+v, and the totals %+v of %d", by, all, totals, l.Total)
		}
		for _, rows := range []int{0, 2, 100} {
			var drawn int64
			for _, line := range l.Chart(rows).Lines {
				for _, micro := range line.Micro {
					drawn += micro
				}
			}
			if drawn != l.Total {
				t.Fatalf("by %s: a chart of %d rows has %d of %d", by, rows, drawn, l.Total)
			}
		}
	}
}

func TestEveryGroupingAddsUpToTheBills(t *testing.T) { properties.Check(addsUp)(t) }

func FuzzGroupings(f *testing.F) { f.Fuzz(rapid.MakeFuzz(addsUp)) }

// TestOrderOfTheSamplesDoesNotMatter checks that rounding does not depend on the order in which a Prometheus answers.
func TestOrderOfTheSamplesDoesNotMatter(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		m := measured(t)
		turned := m
		turned.Machines, turned.Uses, turned.Pods = slices.Clone(m.Machines), slices.Clone(m.Uses), slices.Clone(m.Pods)
		slices.Reverse(turned.Machines)
		slices.Reverse(turned.Uses)
		slices.Reverse(turned.Pods)
		for _, by := range groupings {
			if diff := cmp.Diff(cost.Build(m, by), cost.Build(turned, by), cmpopts.IgnoreUnexported(cost.Ledger{})); diff != "" {
				t.Fatalf("by %s:\n%s", by, diff)
			}
		}
	})(t)
}

func TestPodsOfANamespaceAddUpToIt(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		m := measured(t)
		pods, listed := map[cost.Key]int64{}, map[cost.Key]int64{}
		for _, r := range cost.Build(m, cost.Grouping{Dimension: cost.ByPod}).Rows {
			key := cost.Key{Namespace: r.Namespace}
			if r.Namespace == "" {
				key.Rest = r.Rest
			}
			pods[key] += r.Total
			listed[key] += r.ListTotal
		}
		namespaces, list := map[cost.Key]int64{}, map[cost.Key]int64{}
		for _, r := range cost.Build(m, cost.Grouping{Dimension: cost.ByNamespace}).Rows {
			namespaces[r.Key] += r.Total
			list[r.Key] += r.ListTotal
		}
		if diff := cmp.Diff(list, listed); diff != "" {
			t.Fatalf("in the list (-namespaces +pods):\n%s", diff)
		}
		if diff := cmp.Diff(namespaces, pods); diff != "" {
			t.Fatalf("(-namespaces +pods):\n%s", diff)
		}
	})(t)
}

func TestAmountsAreApportionedExactly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		amount  int64
		weights []int64
		want    []int64
	}{
		{100, []int64{1, 1, 1}, []int64{34, 33, 33}},
		{100, []int64{1, 2, 3}, []int64{17, 33, 50}},
		{2, []int64{1, 1, 1}, []int64{1, 1, 0}},
		{5, []int64{0, 0}, []int64{5, 0}},
		{5, nil, []int64{}},
		{-5, []int64{1}, []int64{0}},
		{10, []int64{-4, 1, 1}, []int64{0, 5, 5}},
		{math.MaxInt64, []int64{math.MaxInt64}, []int64{math.MaxInt64}},
	} {
		if diff := cmp.Diff(c.want, cost.Apportion(c.amount, c.weights)); diff != "" {
			t.Errorf("%d by %v (-want +got):\n%s", c.amount, c.weights, diff)
		}
	}
}

func TestApportionedPartsAddUp(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		amount, weights := rapid.Int64Range(0, math.MaxInt64).Draw(t, "amount"), rapid.SliceOfN(rapid.Int64Range(0, math.MaxInt64), 1, 9).Draw(t, "weights")
		var sum int64
		for _, part := range cost.Apportion(amount, weights) {
			if sum += part; part < 0 {
				t.Fatalf("a part is %d", part)
			}
		}
		if sum != amount {
			t.Fatalf("the parts are %d of %d", sum, amount)
		}
	})(t)
}
