package kubelet_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// times returns how often to repeat a step that may leak or fail: KARVE_RESTARTS, or 3.
func times(t *testing.T) int {
	t.Helper()
	text := os.Getenv("KARVE_RESTARTS")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KARVE_RESTARTS: %v", err)
	}
	return n
}

// unload makes the fake driver return an error code from every call. load makes it work again.
func (w *world) unload(code int) {
	w.t.Helper()
	w.must(w.Change(func(s *nvmltest.State) { s.Fail = code }))
}

func (w *world) load() {
	w.t.Helper()
	w.must(w.Change(func(s *nvmltest.State) { s.Fail, s.Hang = 0, false }))
}

// within waits until both the kubelet and the API server report want replicas, and fails the test if this takes longer than the bound.
func (w *world) within(bound time.Duration, want int) {
	w.t.Helper()
	began := time.Now()
	w.allocatable(want)
	took := time.Since(began)
	w.t.Logf("%d allocatable after %s", want, took.Round(10*time.Millisecond))
	if took > bound {
		w.t.Errorf("that took %s, want %s at most", took, bound)
	}
}

func TestKubeletLearnsOfLostDriverWithinThirtySeconds(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w, agent := serving(t, p, 2, 10)
	pods := w.settle(3)
	for name, lose := range map[string]func(){
		"not loaded": func() { w.unload(nvmltest.DriverNotLoaded) },
		"hung":       func() { w.must(w.Change(func(s *nvmltest.State) { s.Hang = true })) },
	} {
		t.Log(name)
		lose()
		w.within(30*time.Second, 0)
		pods.unchanged()
		w.load()
		w.within(10*time.Second, 20)
	}
	t.Log("one GPU")
	w.must(w.Change(func(s *nvmltest.State) { s.Devices[1].Lost = true }))
	w.within(30*time.Second, 10)
	pods.unchanged()
	select {
	case <-agent.Done():
		t.Error("the agent has ended")
	default:
	}
}

// opened returns the number of open files and threads of the agent. Both grow if it leaks.
func opened(t *testing.T, agent *kubelet.Process) (files, threads int) {
	t.Helper()
	count := func(kind string) int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", agent.PID(), kind))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	return count("fd"), count("task")
}

// waitForLog waits until the agent has logged some words a number of times.
func (w *world) waitForLog(agent *kubelet.Process, words string, often int) {
	w.t.Helper()
	w.eventually(func() error {
		log, err := os.ReadFile(agent.Log())
		if n := strings.Count(string(log), words); err == nil && n < often {
			err = fmt.Errorf("%q is in the log %d times, want %d", words, n, often)
		}
		return err
	})
}

// The driver is unavailable for some seconds while it is reloaded. Its GPUs stay allocatable, so that no starting pod fails.
func TestNoPodFailsWhileDriverReloads(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w, agent := serving(t, p, 1, 10)
	pods := w.settle(3)
	churn := w.StartChurn(t.Context(), "churn", 3)
	var files, threads int
	for i := range times(t) {
		w.unload(nvmltest.DriverNotLoaded)
		w.waitForLog(agent, "The driver does not answer; opening it again", i+1)
		w.load()
		w.waitForLog(agent, "Found GPUs", i+2)
		if i == 1 {
			files, threads = opened(t, agent)
		}
	}
	churn.Stop()
	if churn.Refused > 0 {
		t.Errorf("%d pods were refused", churn.Refused)
	}
	w.judge(churn, pods)
	nowFiles, nowThreads := opened(t, agent)
	t.Logf("%d files and %d threads, and in the end %d and %d", files, threads, nowFiles, nowThreads)
	if nowFiles > files+3 || nowThreads > threads+3 {
		t.Errorf("%d files and %d threads, and in the end %d and %d", files, threads, nowFiles, nowThreads)
	}
}
