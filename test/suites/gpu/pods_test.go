//go:build cgo && gpu

package gpu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMetricsOfPods compares the device memory that metrics show of a pod with what its program has allocated.
func TestMetricsOfPods(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	const uid, mib = "11111111-2222-3333-4444-555555555555", 768
	id := strings.Repeat("ab", 32)
	cgroup, err := os.MkdirTemp("/sys/fs/cgroup", "karve")
	if err != nil {
		t.Skipf("the process of a pod needs a cgroup: %v", err)
	}
	pod := filepath.Join(cgroup, "pod"+uid)
	container := filepath.Join(pod, id)
	t.Cleanup(func() {
		for _, dir := range []string{container, pod, cgroup} {
			_ = os.Remove(dir)
		}
	})
	if err := os.MkdirAll(container, 0o700); err != nil {
		t.Skipf("the process of a pod needs a cgroup: %v", err)
	}
	logs := filepath.Join(w.dir, "log")
	w.must(os.MkdirAll(filepath.Join(logs, "pods", "default_trainer_"+uid, "main"), 0o700))
	w.environment = []string{"POD_LOG_ROOT=" + logs}
	w.share("timeSlicing", 4)
	w.run()
	w.allocatable(4 * len(w.devices))
	uuid := w.devices[0].UUID
	p := w.use(uuid, fmt.Sprint(mib))
	if p.problem != "" {
		t.Fatal(p.problem)
	}
	if err := os.WriteFile(filepath.Join(container, "cgroup.procs"), []byte(fmt.Sprint(p.cmd.Process.Pid)), 0o600); err != nil {
		t.Skipf("the process of a pod needs a cgroup: %v", err)
	}
	const name = "karve_pod_gpu_memory_used_bytes"
	w.eventually("the metrics show the pod", func() bool { return w.metric(name, `pod="trainer"`, `container="main"`) > 0 })
	got := w.metric(name, `pod="trainer"`) / (1 << 20)
	attr(t, "memoryMiB", map[string]float64{"program": mib, "metric": got})
	const context = 2048 // MiB that CUDA itself needs, at most
	if got < mib || got > mib+context {
		t.Errorf("the program has %d MiB, and the metric is %.0f", mib, got)
	}
	if err := p.end(); err != nil {
		t.Error(err)
	}
	w.eventually("the metrics no longer show the pod", func() bool { return w.metric(name, `pod="trainer"`) == 0 })
}
