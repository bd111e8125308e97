package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"karve.sh/karve/pkg/cost"
)

// Costs returns what the machines of the cluster cost in a range.
type Costs func(ctx context.Context, r cost.Range, by cost.Grouping) (*cost.Ledger, error)

const (
	// drawnLines is the number of rows that the chart shows. There is a color for each.
	drawnLines = 7
	// listedRows is the number of rows that the table lists. The CSV has all.
	listedRows = 200
	// costsAge is how long an answer of Prometheus is used again. It is about full hours, which have passed.
	costsAge = 5 * time.Minute
	// costsKept is the number of answers that are kept.
	costsKept = 16
)

type costAnswer struct {
	Cluster string    `json:"cluster,omitempty"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	// Titles are the titles of the columns that name a row.
	Titles []string  `json:"titles"`
	Rows   []costRow `json:"rows"`
	// More is the number of rows that are not listed.
	More  int     `json:"more,omitempty"`
	Total costRow `json:"total"`
	// Discounted reports that the list prices of some rows differ.
	Discounted bool `json:"discounted"`
	// Notes say what is missing, such as hours without data.
	Notes []string   `json:"notes"`
	Spans []costSpan `json:"spans"`
	Lines []costLine `json:"lines"`
}

// costRow is a row of the table, in cents that add up.
type costRow struct {
	Cells         []string `json:"cells,omitempty"`
	UsedCents     int64    `json:"usedCents"`
	IdleCents     int64    `json:"idleCents"`
	OverheadCents int64    `json:"overheadCents"`
	TotalCents    int64    `json:"totalCents"`
	ListCents     int64    `json:"listCents"`
}

// costSpan is an hour or a day of the chart.
type costSpan struct {
	From  time.Time `json:"from"`
	Hours int       `json:"hours"`
	// MissingMinutes is how long there is no data.
	MissingMinutes int `json:"missingMinutes,omitempty"`
}

// costLine is the cost of a row over time.
type costLine struct {
	// Key is the same for the same thing in all answers. It is "" for what has no name.
	Key  string `json:"key,omitempty"`
	Name string `json:"name"`
	// MicroUSD has the cost in each span.
	MicroUSD []int64 `json:"microUSD"`
}

// costs are the answers of Prometheus that are used again.
type costs struct {
	// asking is held while Prometheus is asked: one question at a time takes what it can give.
	asking chan struct{}
	// known are the answers. Who holds asking uses it.
	known map[string]knownCosts
}

type knownCosts struct {
	ledger *cost.Ledger
	at     time.Time
}

// cost responds with what the machines have cost, as JSON.
func (s *Server) cost(w http.ResponseWriter, r *http.Request) {
	if l, by, ok := s.ledger(w, r); ok {
		answer(w, costAnswerOf(s.config.Cluster, l, by))
	}
}

// costCSV responds with what the machines have cost, as CSV.
func (s *Server) costCSV(w http.ResponseWriter, r *http.Request) {
	l, _, ok := s.ledger(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="karve-cost-%s-%s.csv"`, l.From.Format(time.DateOnly), l.To.Format(time.DateOnly)))
	_ = l.CSV(w) // If it fails, the client is gone.
}

func (s *Server) ledger(w http.ResponseWriter, r *http.Request) (*cost.Ledger, cost.Grouping, bool) {
	if s.config.Costs == nil {
		http.Error(w, "This page does not know a Prometheus: see --prometheus of kubectl karve ui, and ui.prometheus of the chart.", http.StatusNotFound)
		return nil, cost.Grouping{}, false
	}
	query := r.URL.Query()
	by, err := cost.ParseGrouping(query.Get("by"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, by, false
	}
	wanted := cost.Wanted{Since: query.Get("since"), From: query.Get("from"), To: query.Get("to"), Month: query.Get("month")}
	span, err := wanted.Range(s.config.Clock.Now())
	if err != nil {
		http.Error(w, strings.ReplaceAll(err.Error(), "--", ""), http.StatusBadRequest) // The flags have the names of the fields.
		return nil, by, false
	}
	l, err := s.costs.of(r.Context(), s, span, by)
	switch {
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		return nil, by, false
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
		return nil, by, false
	}
	return l, by, true
}

// of returns a ledger, from a moment ago if it is known.
func (c *costs) of(ctx context.Context, s *Server, r cost.Range, by cost.Grouping) (*cost.Ledger, error) {
	key, now := fmt.Sprint(r.From.Unix(), r.To.Unix(), by), s.config.Clock.Now()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	}
	if known, ok := c.known[key]; ok && now.Sub(known.at) < costsAge {
		return known.ledger, nil
	}
	l, err := s.config.Costs(ctx, r, by)
	if err != nil {
		return nil, err
	}
	if len(c.known) >= costsKept {
		clear(c.known)
	}
	c.known[key] = knownCosts{l, now}
	return l, nil
}

// costAnswerOf returns what the page shows of a ledger.
func costAnswerOf(cluster string, l *cost.Ledger, by cost.Grouping) costAnswer {
	a := costAnswer{Cluster: cluster, From: l.From, To: l.To, Titles: by.Titles(), Rows: []costRow{}, Notes: append([]string{}, l.Notes()...), Spans: []costSpan{}, Lines: []costLine{}}
	rows, total := l.Cents()
	listed, list := l.ListCents()
	a.Total, a.Discounted = costRow{nil, total.Used, total.Idle, total.Overhead, total.Total(), list}, l.Discounted()
	for i, c := range rows {
		if i == listedRows {
			a.More = len(rows) - i
			break
		}
		a.Rows = append(a.Rows, costRow{by.Cells(l.Rows[i].Key), c.Used, c.Idle, c.Overhead, c.Total(), listed[i]})
	}
	chart := l.Chart(drawnLines)
	for _, span := range chart.Spans {
		a.Spans = append(a.Spans, costSpan{span.From, span.Hours(), l.Coverage.MissingIn(span)})
	}
	for _, line := range chart.Lines {
		drawn := costLine{Name: nameOf(by, line.Key), MicroUSD: line.Micro}
		switch {
		case line.Others > 0:
			drawn.Name = fmt.Sprintf("%d others", line.Others)
		case line.Rest == "":
			drawn.Key = strings.Join(by.Cells(line.Key), "/")
		}
		a.Lines = append(a.Lines, drawn)
	}
	return a
}

func nameOf(by cost.Grouping, key cost.Key) string {
	var parts []string
	for _, cell := range by.Cells(key) {
		if cell != "" {
			parts = append(parts, cell)
		}
	}
	return strings.Join(parts, "/")
}
