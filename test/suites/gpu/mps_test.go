//go:build cgo && gpu

package gpu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
)

func TestMPS(t *testing.T) {
	w := newWorld(t)
	w.whole(7)
	w.privileged()
	if _, err := exec.LookPath(mps.Program); err != nil {
		t.Skip(err)
	}
	const replicas = 4
	uuid, before := w.devices[0].UUID, w.mode(w.devices[0].UUID)
	w.share("mps", replicas)
	w.run()
	supervisor := w.run("mps-daemon")
	w.allocatable(replicas * len(w.devices))
	if got := w.mode(uuid); got != gpu.ComputeExclusiveProcess {
		t.Errorf("the compute mode is %d", got)
	}
	grant, err := w.kubelet.Allocate(t.Context(), "pod", resource, uuid+"::0")
	w.must(err)
	if got := grant.Response.GetEnvs()["CUDA_MPS_PIPE_DIRECTORY"]; got != "/run/karve/mps/pipe" {
		t.Errorf("a container has its pipes at %q", got)
	}

	limit := int(w.devices[0].MemoryMiB) / replicas
	clients := []*process{w.use(uuid, "256", w.pipes(uuid)), w.use(uuid, "256", w.pipes(uuid)), w.use(uuid, "all", w.pipes(uuid)), w.use(uuid, "all", w.pipes(uuid), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M")}
	for i, most := range []int{256, 256, limit, 1024} {
		if p := clients[i]; p.problem != "" || p.mib == 0 || p.mib > most {
			t.Errorf("client %d has %d MiB, %q, want at most %d", i, p.mib, p.problem, most)
		}
	}
	if p := w.use(uuid, "64"); p.problem == "" {
		t.Error("a program uses the GPU past the daemon")
	}
	if p := w.use(uuid, strconv.Itoa(limit+512), w.pipes(uuid)); p.problem == "" {
		t.Errorf("an allocation of %d MiB succeeds, and the limit is %d", limit+512, limit)
	}

	// A daemon that is killed is replaced, and the GPU takes pods again.
	pid := w.daemonPID(uuid)
	w.must(syscall.Kill(pid, syscall.SIGKILL))
	w.eventually("another daemon runs", func() bool { return w.daemonPID(uuid) != pid && w.daemonPID(uuid) != 0 })
	for _, p := range clients {
		_ = p.end() // A client may have failed with its daemon.
	}
	w.allocatable(replicas * len(w.devices))
	if p := w.use(uuid, "64", w.pipes(uuid)); p.problem != "" {
		t.Errorf("a client of the new daemon: %s", p.problem)
	} else if err := p.end(); err != nil {
		t.Error(err)
	}

	// Other limits apply to processes that start.
	w.share("mps", 2*replicas)
	w.allocatable(2 * replicas * len(w.devices))
	if p := w.use(uuid, "all", w.pipes(uuid)); p.mib == 0 || p.mib > limit/2 {
		t.Errorf("with twice the replicas a client has %d MiB, %q", p.mib, p.problem)
	} else if err := p.end(); err != nil {
		t.Error(err)
	}
	w.stop(supervisor)
	w.allocatable(0)
	if got := w.mode(uuid); got != before {
		t.Errorf("the compute mode was %d and is %d", before, got)
	}
}

// daemonPID returns the process of a GPU's daemon, and 0 if it has not started.
func (w *world) daemonPID(uuid string) int {
	text, err := os.ReadFile(filepath.Join(mps.PipeDir(w.mpsDir(), uuid), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}
