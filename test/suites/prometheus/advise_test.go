package prometheus

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/advice"
	"karve.sh/karve/test/harness/billed"
)

// used is a pod in the metrics of two days, in minutes from the first.
type used struct {
	name, kind, owner, gpu string
	from, to               int
	// cores is its use of CPU. It requests requested cores, if that is in the metrics of kube-state-metrics.
	cores, requested float64
	// busy is its use of the GPU, and bytes that of device memory.
	busy, bytes float64
}

const twoDays = 2 * day

// usedSeries writes what Prometheus has of pods. The GPU of a pod is as busy as its pods together.
func usedSeries(w io.Writer, start time.Time, pods []used) error {
	var failed error
	line := func(name, labels string, from, to int, value func(minute int) float64) {
		values := make([]string, to-from)
		for i := range values {
			values[i] = strconv.FormatFloat(value(from+i), 'g', -1, 64)
		}
		if _, err := fmt.Fprintf(w, "{__name__=%q,%s}\t%d\t60\t%s\n", name, labels, start.Add(time.Duration(from)*time.Minute).Unix(), strings.Join(values, " ")); err != nil {
			failed = err
		}
	}
	constant := func(v float64) func(int) float64 { return func(int) float64 { return v } }
	gpus := map[string]float64{}
	for _, p := range pods {
		of := fmt.Sprintf(`namespace="ml",pod=%q`, p.name)
		line("karve_pod_usd_per_hour", fmt.Sprintf(`%s,node="n",nodepool="gpu-shared",owner_kind=%q,owner=%q`, of, p.kind, p.owner), p.from, p.to, constant(0.1))
		line("karve_pod_gpu_sm_ratio", fmt.Sprintf(`%s,container="main",gpu=%q`, of, p.gpu), p.from, p.to, constant(p.busy))
		line("karve_pod_gpu_memory_used_bytes", fmt.Sprintf(`%s,container="main",gpu=%q`, of, p.gpu), p.from, p.to, constant(p.bytes))
		for _, id := range []string{"a", "b"} { // Two Prometheus with the same targets.
			line("container_cpu_usage_seconds_total", fmt.Sprintf(`%s,container="main",replica=%q`, of, id), p.from, p.to, func(minute int) float64 { return float64(minute) * 60 * p.cores })
		}
		line("container_cpu_usage_seconds_total", of+`,container="POD"`, p.from, p.to, func(minute int) float64 { return float64(minute) * 6000 })
		line("container_memory_working_set_bytes", of+`,container="main"`, p.from, p.to, constant(1.8*(1<<30)))
		if p.requested > 0 {
			line("kube_pod_container_resource_requests", of+`,container="main",resource="cpu"`, p.from, p.to, constant(p.requested))
			line("kube_pod_container_resource_requests", of+`,container="main",resource="memory"`, p.from, p.to, constant(2<<30))
			line("kube_pod_container_resource_requests", of+`,container="main",resource="nvidia_com_gpu_shared"`, p.from, p.to, constant(1))
		}
		gpus[p.gpu] += p.busy
	}
	for gpu, busy := range gpus {
		line("karve_gpu_utilization_ratio", fmt.Sprintf(`node="n",gpu=%q`, gpu), 0, twoDays, constant(min(1, busy)))
		line("karve_gpu_memory_total_bytes", fmt.Sprintf(`node="n",gpu=%q`, gpu), 0, twoDays, constant(15<<30))
	}
	line("karve_node_usd_per_hour", `node="n",nodepool="gpu-shared"`, 0, twoDays, constant(4))
	return failed
}

const chat = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat, namespace: ml}
spec:
  replicas: 12
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat}}
    spec:
      tolerations: [{key: nvidia.com/gpu.shared, operator: Exists}]
      containers:
      - name: main
        image: chat
        resources:
          requests: {cpu: "2", memory: 2Gi}
          limits: {nvidia.com/gpu.shared: "1"}
`

// TestAdviceComesFromPrometheus generates what two days of pods left in a Prometheus: a Deployment that requests ten times the CPU that it uses, Jobs that are gone, and
// two pods that keep their GPU busy.
func TestAdviceComesFromPrometheus(t *testing.T) {
	t.Parallel()
	end := time.Now().UTC().Truncate(time.Hour)
	start := end.Add(-twoDays * time.Minute)
	var pods []used
	for i := range 12 {
		pods = append(pods, used{fmt.Sprint("chat-", i), "Deployment", "chat", fmt.Sprint("GPU-", i/6), 0, twoDays, 0.2, 0, 0.04, 1 << 30})
	}
	for i := range 2 {
		pods = append(pods, used{fmt.Sprint("train-", i), "StatefulSet", "train", "GPU-busy", 0, twoDays, 0.5, 0.5, 0.5, 2 << 30})
	}
	for i := range 20 {
		from := 60 + 120*i
		pods = append(pods, used{fmt.Sprint("eval-", i), "CronJob", "eval", "GPU-2", from, from + 60, 0.3, 0.3, 0.1, 1 << 30})
	}
	pods = append(pods, used{"gone", "Pod", "gone", "GPU-2", 100, 200, 0.1, 0, 0.1, 1 << 30})
	dir := t.TempDir()
	data, manifest := filepath.Join(dir, "data"), filepath.Join(dir, "chat.yaml")
	if err := os.WriteFile(manifest, []byte(chat), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := billed.Blocks(t.Context(), dir, data, func(w io.Writer) error { return usedSeries(w, start, pods) }); err != nil {
		t.Fatal(err)
	}
	s := startOn(t, "global: {}\n", must[[]int](t)(freePorts(t, 1))[0], data)
	args := []string{"advise", "--prometheus", s.url, "--from", start.Format(time.RFC3339), "--to", end.Format(time.RFC3339), "-f", manifest}
	for _, file := range []string{"nodepool.yaml", "gpunodeclass.yaml", "nodeclass.yaml"} {
		args = append(args, "-f", filepath.Join(root(t), "examples", file))
	}
	out, errOut, err := kubectlKarve(t, append(args, "-o", "json")...)
	if err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	var a advice.Advice
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatal(err)
	}
	// The twelve pods need six machines for their CPU requests, the two others one or two more, and the Jobs another at times.
	if a.Workloads != 3 || a.Pods != 34 || a.Billed < 191e6 || a.Billed > 193e6 || a.GPUBusy == nil || *a.GPUBusy < 0.61 || *a.GPUBusy > 0.63 {
		t.Errorf("%s", out)
	}
	if len(a.Steps) != 1 || len(a.Steps[0].Changes) != 1 {
		t.Fatalf("%s\n%s", out, errOut)
	}
	c := a.Steps[0].Changes[0]
	if c.Object != "Deployment ml/chat" || c.Kind != advice.Requests || !strings.HasSuffix(c.Patches[0].YAML, "requests:\n            cpu: 200m\n") || !strings.Contains(c.Evidence[0], "p95 0.20, mean 0.20 cores of 2 requested, 12 pods, ") {
		t.Errorf("%+v", c)
	}
	if saved := a.Replayed - a.After; saved != a.Steps[0].Saves || saved < a.Replayed*2/5 {
		t.Errorf("%s", out)
	}
	notes := strings.Join(a.Notes, "\n")
	for _, want := range []string{
		"Pod ml/gone is left out: it has no pod in the cluster, and there is no kube_pod_container_resource_requests of it",
		"no advice on the replicas of GPUNodeClass gpu-shared: of StatefulSet ml/train, others kept its GPU busy in ",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is not among the notes: %s", want, notes)
		}
	}
	text, _, err := kubectlKarve(t, args...)
	if err != nil || !strings.Contains(text, "CPU requests buy ") {
		t.Errorf("%v: %s", err, text)
	}
	t.Log(text)
	for line := range strings.SplitSeq(text, "\n") {
		if len([]rune(line)) > 80 {
			t.Errorf("%d columns: %s", len([]rune(line)), line)
		}
	}
	if _, errOut, err := kubectlKarve(t, "advise", "--prometheus", s.url, "--from", "2024-01-01", "--to", "2024-01-03", "-f", manifest); err == nil || !strings.Contains(errOut, "has no karve_pod_usd_per_hour from 2024-01-01 00:00:00") {
		t.Errorf("%v: %s", err, errOut)
	}
}
