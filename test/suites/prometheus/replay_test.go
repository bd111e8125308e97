package prometheus

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// past is a pod in the metrics of kube-state-metrics, which reports it for a day. Its times are in minutes. A pod that is never scheduled has scheduled
// -1, and one that does not end has no phase.
type past struct {
	name                      string
	created, scheduled, ended int
	phase                     string
	// completed reports whether its containers ended, so that there is a time of completion.
	completed bool
}

const day = 24 * 60

// phaseAt returns the phase of the pod in a minute.
func (p past) phaseAt(minute int) string {
	switch {
	case p.phase != "" && minute >= p.ended:
		return p.phase
	case p.scheduled < 0 || minute < p.scheduled:
		return "Pending"
	}
	return "Running"
}

// openMetrics returns the metrics of pods in a day that begins at a time.
func openMetrics(start time.Time, pods []past) string {
	var out strings.Builder
	family := func(name string, value func(p past, minute int) map[string]float64) {
		fmt.Fprintf(&out, "# TYPE %s gauge\n", name)
		for _, p := range pods {
			lines := map[string][]string{}
			for minute := max(0, p.created); minute <= day; minute++ {
				for labels, v := range value(p, minute) {
					lines[labels] = append(lines[labels], fmt.Sprintf("%s{namespace=\"ml\",pod=%q,uid=%q%s} %f %d\n", name, p.name, p.name, labels, v, start.Unix()+int64(minute)*60))
				}
			}
			for _, of := range lines {
				out.WriteString(strings.Join(of, ""))
			}
		}
	}
	at := func(minute int) float64 { return float64(start.Unix() + int64(minute)*60) }
	family("kube_pod_container_resource_requests", func(past, int) map[string]float64 {
		return map[string]float64{`,container="a",resource="cpu"`: 0.3, `,container="a",resource="memory"`: 1 << 30, `,container="a",resource="nvidia_com_gpu_shared"`: 1}
	})
	family("kube_pod_status_phase", func(p past, minute int) map[string]float64 {
		phases := map[string]float64{}
		for _, phase := range []string{"Pending", "Running", "Succeeded", "Failed", "Unknown"} {
			phases[fmt.Sprintf(",phase=%q", phase)] = 0
		}
		phases[fmt.Sprintf(",phase=%q", p.phaseAt(minute))] = 1
		return phases
	})
	family("kube_pod_created", func(p past, _ int) map[string]float64 { return map[string]float64{"": at(p.created)} })
	family("kube_pod_status_scheduled_time", func(p past, minute int) map[string]float64 {
		if p.scheduled < 0 || minute < p.scheduled {
			return nil
		}
		return map[string]float64{"": at(p.scheduled)}
	})
	family("kube_pod_completion_time", func(p past, minute int) map[string]float64 {
		if !p.completed || minute < p.ended {
			return nil
		}
		return map[string]float64{"": at(p.ended)}
	})
	out.WriteString("# EOF\n")
	return out.String()
}

// TestReplayCountsPodsWhileTheyHoldAMachine replays a day of kube-state-metrics in a real Prometheus. One pod runs all day. Others failed, completed, were
// evicted, or were pending, and are reported all day.
func TestReplayCountsPodsWhileTheyHoldAMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pods := []past{
		{name: "live", created: -60},
		{name: "job", created: 6*60 + 7, scheduled: 6*60 + 8, ended: 7*60 + 8, phase: "Succeeded", completed: true},
		{name: "short", created: 15*60 + 1, scheduled: 15*60 + 1, ended: 15*60 + 3, phase: "Succeeded", completed: true},
		{name: "waits", created: 9 * 60, scheduled: 12 * 60, ended: 13 * 60, phase: "Failed", completed: true},
		{name: "never", created: 60, scheduled: -1},
	}
	for i := range 30 {
		pods = append(pods, past{name: fmt.Sprintf("evicted-%d", i), created: -60, scheduled: 0, ended: 30, phase: "Failed"})
	}
	end := time.Now().Truncate(5 * time.Minute)
	file, data := filepath.Join(dir, "metrics.txt"), filepath.Join(dir, "data")
	if err := os.WriteFile(file, []byte(openMetrics(end.Add(-24*time.Hour), pods)), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "tsdb", "create-blocks-from", "openmetrics", file, data)
	s := startOn(t, "global: {}\n", 29473, data)
	replay := exec.CommandContext(t.Context(), must[string](t)(kubectlPlugin()), "replay", "--prometheus", s.url, "--since", "20h", "-o", "json",
		"-f", filepath.Join(root(t), "examples", "nodepool.yaml"), "-f", filepath.Join(root(t), "examples", "gpunodeclass.yaml"))
	replay.Stderr = os.Stderr
	out, err := replay.Output()
	if err != nil {
		t.Fatal(err)
	}
	var compared struct {
		Hours    float64 `json:"hours"`
		Pods     int     `json:"pods"`
		Outcomes []struct {
			Total int64 `json:"microUSD"`
		} `json:"outcomes"`
	}
	if err := json.Unmarshal(out, &compared); err != nil {
		t.Fatal(err)
	}
	// On whole GPUs, the live pod has a g4dn.xlarge of $0.526 for the whole time, two of the others one for an hour, and one for two minutes.
	if h := compared.Hours; h < 19.8 || h > 20 || compared.Pods != 4 || len(compared.Outcomes) != 3 {
		t.Fatalf("%s", out)
	}
	for i, hours := range []float64{compared.Hours + 2 + 2./60, compared.Hours, compared.Hours} {
		if want := int64(526_000 * hours); compared.Outcomes[i].Total < want-5000 || compared.Outcomes[i].Total > want+5000 {
			t.Errorf("outcome %d costs %d, want %d", i, compared.Outcomes[i].Total, want)
		}
	}
}
