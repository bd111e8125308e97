// Package promquerytest has a server that answers queries as Prometheus does, with series that a test gives.
package promquerytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"karve.sh/karve/pkg/promquery"
)

// Series is an answer to the queries that begin with a text and contain another one. It has the same value at each time for which At returns true. If At is nil, that is each time.
type Series struct {
	Begins, Contains string
	Labels           model.Metric
	Value            float64
	At               func(time.Time) bool
}

// Server answers queries with series, and records them. A range for which a series has no value does not have the series.
type Server struct {
	Series []Series
	// Late is added to the times of answers for a range.
	Late time.Duration

	mu      sync.Mutex
	queries []string
}

// Queries returns the queries so far.
func (s *Server) Queries() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.queries)
}

// Client starts the server and returns a client of it.
func (s *Server) Client(t *testing.T) *promquery.Client {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c, err := promquery.New(server.URL, "a test", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.FormValue("query")
	s.mu.Lock()
	s.queries = append(s.queries, query)
	s.mu.Unlock()
	seconds := func(name string) float64 {
		n, _ := strconv.ParseFloat(r.FormValue(name), 64)
		return n
	}
	inRange := strings.HasSuffix(r.URL.Path, "_range")
	kind, result := "vector", []any{}
	if inRange {
		kind = "matrix"
	}
	for _, x := range s.Series {
		if !strings.HasPrefix(query, x.Begins) || !strings.Contains(query, x.Contains) {
			continue
		}
		value := fmt.Sprint(x.Value)
		if !inRange {
			result = append(result, map[string]any{"metric": x.Labels, "value": []any{seconds("time"), value}})
			continue
		}
		var values []any
		for at := seconds("start"); at <= seconds("end"); at += seconds("step") {
			if x.At == nil || x.At(time.Unix(int64(at), 0)) {
				values = append(values, []any{at + s.Late.Seconds(), value})
			}
		}
		if values != nil {
			result = append(result, map[string]any{"metric": x.Labels, "values": values})
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": kind, "result": result}})
}

// WithAPod returns a server with what Prometheus has of a machine of $1 an hour, all of whose replicas a pod has held at each time. labels are the pod's: namespace, pod,
// nodepool, gpunodeclass, owner_kind and owner.
func WithAPod(labels model.Metric) *Server {
	of := func(name, value model.LabelValue) model.Metric {
		all := labels.Clone()
		all[model.LabelName(name)] = value
		return all
	}
	const windows = 12 // of five minutes, in an hour
	return &Server{Series: []Series{
		{Contains: "cluster:karve_cost", Labels: model.Metric{}, Value: windows},
		{Contains: "nodepool:karve_cost_usd", Labels: of("share", "used"), Value: windows},
		{Contains: "namespace:karve_cost_usd", Labels: of("share", "used"), Value: windows},
		{Contains: "owner:karve_cost_usd", Labels: of("share", "used"), Value: windows},
		{Contains: "label:karve_cost_usd", Labels: of("value", labels["pod"]), Value: windows},
		{Begins: "sum by (namespace, pod", Contains: "karve_pod_usd_per_hour", Labels: of("share", "used"), Value: windows},
		{Begins: "sum by (namespace, pod, uid, resource)", Labels: of("resource", "nvidia_com_gpu_shared"), Value: 1},
		{Begins: "count by (__name__)", Labels: of("__name__", "kube_pod_status_phase"), Value: 1},
		{Begins: "max by (namespace, pod", Contains: "karve_pod_usd_per_hour", Labels: of("share", "used"), Value: 1},
	}}
}
