package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/replay"
)

// prometheusServer starts a Prometheus with pods that run from an hour after the start of each query to its end. Metrics that are missing have no series.
func prometheusServer(t *testing.T, missing ...string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		query := r.Form.Get("query")
		var start, end float64
		fmt.Sscan(r.Form.Get("start"), &start)
		fmt.Sscan(r.Form.Get("end"), &end)
		var result []string
		add := func(pod int, resource, value string) {
			result = append(result, fmt.Sprintf(`{"metric": {"namespace": "batch", "pod": "p-%d", "uid": "%d-%.0f", "resource": %q}, "values": [[%.0f, %q], [%.0f, %q]]}`,
				pod, pod, start, resource, start+3600, value, end, value))
		}
		if query == replay.MetricsQuery {
			var times []string
			for at := start; at <= end; at += 300 {
				times = append(times, fmt.Sprintf(`[%.0f, "40"]`, at))
			}
			result = append(result, fmt.Sprintf(`{"metric": {"__name__": "kube_pod_status_phase"}, "values": [%s]}`, strings.Join(times, ",")))
		}
		for pod := range 12 {
			switch query {
			case replay.CompletedQuery, replay.ScheduledQuery, replay.MetricsQuery:
			case replay.CreatedQuery:
				add(pod, "", fmt.Sprintf("%.0f", start+3500))
			default:
				add(pod, "cpu", "0.5")
				add(pod, "memory", "1073741824")
				add(pod, "nvidia_com_gpu", "1")
			}
		}
		for _, metric := range missing {
			if strings.Contains(query, metric) {
				result = nil
			}
		}
		fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "matrix", "result": [%s]}}`, strings.Join(result, ","))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestPodsOfPrometheusAreReplayed(t *testing.T) {
	for name, c := range map[string]struct {
		missing []string
		status  int
		note    string
	}{
		"all metrics":     {nil, 0, ""},
		"no phases":       {[]string{"count by (__name__) (kube_pod_status_phase"}, 0, "note: Prometheus has no kube_pod_status_phase, so pods that are pending, and those that failed or were evicted, count until they are deleted\n"},
		"no creation":     {[]string{"kube_pod_created"}, 0, "note: Prometheus has none of kube_pod_status_scheduled_time, kube_pod_start_time and kube_pod_created, so pods count from when they were first seen, with a precision of 5m0s\n"},
		"no GPU is asked": {[]string{"kube_pod_container_resource_requests"}, 1, " has no kube_pod_container_resource_requests with resource nvidia_com_gpu or nvidia_com_gpu_shared since "},
	} {
		var out, errOut bytes.Buffer
		args := []string{"replay", "--prometheus", prometheusServer(t, c.missing...), "--since", "48h", "-f", "../../examples/nodepool.yaml", "-f", "../../examples/gpunodeclass.yaml", "-o", "json"}
		status := run(t.Context(), args, streams{strings.NewReader(""), &out, &errOut})
		if status != c.status || !strings.Contains(errOut.String(), c.note) || c.note == "" && errOut.Len() > 0 {
			t.Errorf("%s: status %d, %s", name, status, &errOut)
		}
		if c.status != 0 {
			continue
		}
		var compared replay.Comparison
		if err := json.Unmarshal(out.Bytes(), &compared); err != nil {
			t.Fatal(err)
		}
		// Twelve pods a day share two machines instead of having one each.
		if o := compared.Outcomes; compared.Pods != 24 || len(o) != 3 || o[2].Total <= 0 || o[0].Total < 4*o[2].Total {
			t.Errorf("%s: %+v", name, compared)
		}
	}
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"replay", "--prometheus", "http://127.0.0.1:1"}, streams{strings.NewReader(""), &out, &errOut}); status != 1 || !strings.Contains(errOut.String(), "error: querying Prometheus at http://127.0.0.1:1: ") {
		t.Errorf("status %d, %s", status, &errOut)
	}
}

func TestGapsInTheMetricsAreNoted(t *testing.T) {
	t.Parallel()
	gap := func(hour int) [2]time.Time {
		start := time.Date(2026, 10, 1, hour, 0, 0, 0, time.UTC)
		return [2]time.Time{start, start.Add(time.Hour)}
	}
	for more, gaps := range map[string][][2]time.Time{"": {gap(3)}, ", and in 1 more gap": {gap(3), gap(5)}, ", and in 2 more gaps": {gap(3), gap(5), gap(7)}} {
		want := []string{"Prometheus has no metrics of pods from 2026-10-01T03:00:00Z to 2026-10-01T04:00:00Z" + more +
			": pods that were seen before and after count as running in between, and others end or begin there"}
		if diff := cmp.Diff(want, recordingNotes(&replay.Recording{Dated: true, Phased: true, Gaps: gaps})); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}
