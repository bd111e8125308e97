package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"karve.sh/karve/test/harness/karve"
)

// metric returns the sum of the series of a metric that have all the labels, such as `nodepool="a"`; -1 if there are none. If the world's controller has
// restarted, it adds what the counters had before.
func (w *world) metric(t *testing.T, of *karve.Controller, name string, labels ...string) float64 {
	t.Helper()
	body, err := get(t.Context(), of.MetricsURL)
	if err != nil {
		t.Fatal(err)
	}
	pages := []string{body}
	if of == w.karve && strings.HasSuffix(name, "_total") {
		pages = append(pages, w.ended.all()...)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(strings.Join(pages, "\n")) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		all := true
		for _, l := range labels {
			all = all && strings.Contains(series, l)
		}
		n, err := strconv.ParseFloat(value, 64)
		if all && err == nil {
			sum, found = sum+n, true
		}
	}
	if !found {
		return -1
	}
	return sum
}

// endedMetrics has the metrics of controllers that have ended: the counters of the next one begin again.
type endedMetrics struct {
	mu    sync.Mutex
	last  string // of the controller that runs
	pages []string
}

// read reads the metrics of the controller that runs. What it counts after the last read is lost if it ends.
func (e *endedMetrics) read(ctx context.Context, url string) {
	body, err := get(ctx, url)
	if err != nil {
		return // It may have ended.
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = body
}

// end records that the controller has ended.
func (e *endedMetrics) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pages, e.last = append(e.pages, e.last), ""
}

func (e *endedMetrics) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.pages)
}

func TestCountersAddUpOverRestarts(t *testing.T) {
	t.Parallel()
	var page atomic.Value
	page.Store("launches_total{nodepool=\"a\"} 2\nnodes{nodepool=\"a\"} 5\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page.Load()) }))
	defer server.Close()
	w := &world{karve: &karve.Controller{MetricsURL: server.URL}}
	w.ended.read(t.Context(), server.URL)
	w.ended.end()
	page.Store("launches_total{nodepool=\"a\"} 1\nnodes{nodepool=\"a\"} 4\n")
	if launches, nodes := w.metric(t, w.karve, "launches_total", `nodepool="a"`), w.metric(t, w.karve, "nodes"); launches != 3 || nodes != 4 {
		t.Errorf("%v launches and %v nodes, want 3 and 4", launches, nodes)
	}
	if other := w.metric(t, &karve.Controller{MetricsURL: server.URL}, "launches_total"); other != 1 {
		t.Errorf("another controller has %v, want 1", other)
	}
}

// get returns the body of a URL, which must answer with status 200.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, res.Status, body)
	}
	return string(body), err
}
