package ui_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/ui"
)

// costsOf returns the costs of a pool that costs $3 in each span, and of which namespaces use $2. The first hour has no data.
func costsOf(asked *atomic.Int32, namespaces ...string) ui.Costs {
	return func(_ context.Context, r cost.Range, by cost.Grouping) (*cost.Ledger, error) {
		asked.Add(1)
		if by.Label == "broken" {
			return nil, errors.New("querying Prometheus at a test: it is down")
		}
		covered := slices.Repeat([]int{12}, r.Hours())
		covered[0] = 0
		m := cost.Measured{Range: r, Coverage: cost.CoverageOf(r, covered)}
		for i := range r.Spans() {
			m.Machines = append(m.Machines, cost.Machines{Span: i, Pool: "gpu", For: bill.Used, USD: 2}, cost.Machines{Span: i, Pool: "gpu", For: bill.Idle, USD: 1, Discount: 0.5})
			for _, name := range namespaces {
				m.Uses = append(m.Uses, cost.Use{Span: i, Pool: "gpu", By: cost.Key{Namespace: name}, USD: 2 / float64(len(namespaces))})
			}
		}
		return cost.Build(m, by), nil
	}
}

func TestCostsOfARangeAreAnsweredOnce(t *testing.T) {
	t.Parallel()
	s, asked := of(small()), &atomic.Int32{}
	s.costs = costsOf(asked, "a", "b", "c", "d", "e", "f", "g", "h", "i")
	handler := serve(t, s)
	var answer struct {
		Cluster, From string
		Titles, Notes []string
		Rows          []struct {
			Cells                 []string
			TotalCents, ListCents int64
		}
		Total      struct{ UsedCents, IdleCents, TotalCents, ListCents int64 }
		Discounted bool
		Spans      []struct{ MissingMinutes, Hours int }
		Lines      []struct {
			Key, Name string
			MicroUSD  []int64
		}
	}
	for range 3 {
		if err := json.Unmarshal([]byte(body(t, get(handler, "/karve/cost?by=namespace&from=2026-01-01&to=2026-01-11"))), &answer); err != nil {
			t.Fatal(err)
		}
	}
	sum, list := int64(0), int64(0)
	for _, r := range answer.Rows {
		sum += r.TotalCents
		list += r.ListCents
	}
	if list != 3500 || answer.Total.ListCents != 3500 || !answer.Discounted {
		t.Errorf("by the list: %d, %+v", list, answer.Total)
	}
	if asked.Load() != 1 || answer.Cluster != "test" || answer.From != "2026-01-01T00:00:00Z" || sum != 3000 || answer.Total.TotalCents != 3000 || answer.Total.UsedCents != 2000 || len(answer.Rows) != 9 {
		t.Errorf("asked %d times: %+v", asked.Load(), answer)
	}
	if len(answer.Spans) != 10 || answer.Spans[0].MissingMinutes != 60 || answer.Spans[1].MissingMinutes != 0 || answer.Spans[0].Hours != 24 || len(answer.Notes) != 1 || !strings.HasPrefix(answer.Notes[0], "no data for 1h of 10d") {
		t.Errorf("%+v, %q", answer.Spans, answer.Notes)
	}
	if n := len(answer.Lines); n != 8 || answer.Lines[0].Key != "a" || answer.Lines[7].Name != "2 others" || answer.Lines[7].Key != "" || len(answer.Lines[7].MicroUSD) != 10 {
		t.Errorf("%+v", answer.Lines)
	}
	response := get(handler, "/karve/cost.csv?by=namespace&from=2026-01-01&to=2026-01-11")
	if text := body(t, response); !strings.HasPrefix(text, "from,to,namespace,used_usd,") || strings.Count(text, "\n") != 10 || response.Header.Get("Content-Disposition") != `attachment; filename="karve-cost-2026-01-01-2026-01-11.csv"` {
		t.Errorf("%s\n%s", response.Header, text)
	}
}

func TestWrongQuestionsAboutCostsAreAnsweredWithTheReason(t *testing.T) {
	t.Parallel()
	s := of(small())
	s.costs = costsOf(&atomic.Int32{}, "a")
	for query, want := range map[string]struct {
		status int
		text   string
	}{
		"by=team":                               {http.StatusBadRequest, "not by \"team\""},
		"by=pool&since=1y":                      {http.StatusBadRequest, "since must be a number of hours, days or weeks"},
		"by=pool&from=2026-01-02&to=2026-01-01": {http.StatusBadRequest, "from 2026-01-02 is not before to 2026-01-01"},
		"by=" + url.QueryEscape("label:broken"): {http.StatusBadGateway, "querying Prometheus at a test: it is down"},
	} {
		for _, path := range []string{"/karve/cost?", "/karve/cost.csv?"} {
			response := get(serve(t, s), path+query)
			if text := body(t, response); response.StatusCode != want.status || !strings.Contains(text, want.text) || strings.Contains(text, "--") {
				t.Errorf("%s%s: %d, %s", path, query, response.StatusCode, text)
			}
		}
	}
	response := get(serve(t, of(small())), "/karve/cost?by=pool")
	if text := body(t, response); response.StatusCode != http.StatusNotFound || !strings.Contains(text, "does not know a Prometheus") {
		t.Errorf("%d, %s", response.StatusCode, text)
	}
	response = get(serve(t, s), "/karve/cost?by=pool", func(r *http.Request) { r.Header.Del("Authorization") })
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("without a token: %d", response.StatusCode)
	}
}

func TestAnswersAboutCostsAreRenewed(t *testing.T) {
	t.Parallel()
	s, asked := of(small()), &atomic.Int32{}
	s.costs = costsOf(asked, "a")
	handler := serve(t, s)
	for i := range 40 {
		get(handler, "/karve/cost?by=pool&from=2026-01-01&to="+time.Date(2026, 1, 2+i%20, 0, 0, 0, 0, time.UTC).Format(time.DateOnly))
	}
	if n := asked.Load(); n < 21 || n > 40 { // Only some answers are kept.
		t.Errorf("asked %d times", n)
	}
}
