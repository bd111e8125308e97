//go:build cgo && gpu

package gpu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMetricsOfPods compares the device memory that metrics show of a pod with what its program has allocated.
func TestMetricsOfPods(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	const uid, mib = "11111111-2222-3333-4444-555555555555", 768
	container := w.cgroup("pod"+uid, strings.Repeat("ab", 32))
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
	if err := os.WriteFile(filepath.Join(container, "cgroup.procs"), fmt.Append(nil, p.cmd.Process.Pid), 0o600); err != nil {
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

// cgroup makes a cgroup with the given path, and returns its directory. It skips the test if it may not.
func (w *world) cgroup(path ...string) string {
	w.t.Helper()
	// With version 1, each controller has its own directory.
	roots := []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/pids"}
	i := slices.IndexFunc(roots, func(root string) bool {
		_, err := os.Stat(filepath.Join(root, "cgroup.procs"))
		return err == nil
	})
	if i < 0 {
		w.t.Skip("the process of a pod needs a cgroup, and this machine has none")
	}
	dir, err := os.MkdirTemp(roots[i], "karve")
	if err != nil {
		w.t.Skipf("the process of a pod needs a cgroup: %v", err)
	}
	remove := func(dir string) { w.t.Cleanup(func() { _ = os.Remove(dir) }) }
	remove(dir)
	for _, part := range path {
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o700); err != nil {
			w.t.Skipf("the process of a pod needs a cgroup: %v", err)
		}
		remove(dir)
	}
	return dir
}
