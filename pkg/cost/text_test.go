package cost_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/cost"
)

func TestALedgerIsATableAndCSV(t *testing.T) {
	t.Parallel()
	m := october(t)
	m.Coverage, m.UnpricedHours = cost.CoverageOf(m.Range, nil), 2.5
	l := cost.Build(m, cost.Grouping{Dimension: cost.ByNamespace})
	text := l.Text()
	var csv strings.Builder
	if err := l.CSV(&csv); err != nil {
		t.Fatal(err)
	}
	const wantText = `2026-10-01 12:00 to 2026-10-03 13:00 UTC, 2d1h
no data for 2d1h of 2d1h (100.0 %), which count as $0: 2026-10-01 12:00 to 2026-10-03 13:00 UTC
2.5 machine hours have no price, and count as $0

NAMESPACE   USED $   IDLE $   OVERHEAD $   TOTAL $     SHARE
ml           20.00     6.00         0.00     26.00    51.5 %
web          14.50     3.38         1.00     18.88    37.4 %
(unused)      0.00     5.00         0.00      5.00     9.9 %
(unknown)     0.50     0.12         0.00      0.62     1.2 %
total        35.00    14.50         1.00     50.50   100.0 %
`
	const wantCSV = `from,to,namespace,used_usd,idle_usd,overhead_usd,total_usd,list_usd
2026-10-01T12:00:00Z,2026-10-03T13:00:00Z,ml,20.00,6.00,0.00,26.00,26.00
2026-10-01T12:00:00Z,2026-10-03T13:00:00Z,web,14.50,3.38,1.00,18.88,18.88
2026-10-01T12:00:00Z,2026-10-03T13:00:00Z,(unused),0.00,5.00,0.00,5.00,5.00
2026-10-01T12:00:00Z,2026-10-03T13:00:00Z,(unknown),0.50,0.12,0.00,0.62,0.62
`
	if diff := cmp.Diff(wantText, text); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantCSV, csv.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// With a discount, there is one more column.
	m.Machines = append(m.Machines, cost.Machines{Span: 1, Pool: "small", Class: "t4", For: bill.Idle, Discount: 2.5})
	const wantBoth = `NAMESPACE   USED $   IDLE $   OVERHEAD $   TOTAL $   LIST $     SHARE
ml           20.00     6.00         0.00     26.00    26.00    51.5 %
web          14.50     3.38         1.00     18.88    18.88    37.4 %
(unused)      0.00     5.00         0.00      5.00     7.50     9.9 %
(unknown)     0.50     0.12         0.00      0.62     0.62     1.2 %
total        35.00    14.50         1.00     50.50    53.00   100.0 %
`
	if text := cost.Build(m, cost.Grouping{Dimension: cost.ByNamespace}).Text(); !strings.HasSuffix(text, "\n\n"+wantBoth) {
		t.Errorf("want\n%s\ngot\n%s", wantBoth, text)
	}
	for by, want := range map[string]string{
		"owner": "NAMESPACE   KIND         OWNER       USED $", "pod": "NAMESPACE   POD", "label:team": "LABEL team   USED $", "pool": "POOL    USED $", "class": "CLASS   USED $",
	} {
		grouping, err := cost.ParseGrouping(by)
		if err != nil {
			t.Fatal(err)
		}
		m := october(t)
		for i := range m.Uses {
			m.Uses[i].By.Kind, m.Uses[i].By.Name = "Deployment", []string{"", "a"}[i%2]
		}
		text := cost.Build(m, grouping).Text()
		if !strings.Contains(text, want) {
			t.Errorf("by %s:\n%s", by, text)
		}
		if by == "label:team" && !strings.Contains(text, "(no label)") {
			t.Errorf("pods without the label have no row:\n%s", text)
		}
	}
}
