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
	const replicas = 4
	uuid, before := w.devices[0].UUID, w.mode(w.devices[0].UUID)
	limit := int(w.devices[0].MemoryMiB) / replicas
	w.share("mps", replicas)
	w.run()
	supervisor := w.daemons()
	w.allocatable(replicas * len(w.devices))
	part := func(name string, test func(w *world)) {
		t.Run(name, func(t *testing.T) {
			inner := *w
			inner.t = t
			test(&inner)
		})
	}
	part("the compute mode", func(w *world) {
		want := before
		if changesMode() {
			want = gpu.ComputeExclusiveProcess
		}
		if got := w.mode(uuid); got != want {
			w.t.Errorf("the compute mode is %d, want %d", got, want)
		}
		if p := w.use(uuid, "64"); changesMode() && p.problem == "" {
			w.t.Error("a program uses the GPU past the daemon")
		}
	})
	part("the answer to the kubelet", func(w *world) {
		grant, err := w.kubelet.Allocate(w.t.Context(), "pod", resource, uuid+"::0")
		w.must(err)
		if got := grant.Response.GetEnvs()["CUDA_MPS_PIPE_DIRECTORY"]; got != "/run/karve/mps/pipe" {
			w.t.Errorf("a container has its pipes at %q", got)
		}
	})
	part("limits of memory", func(w *world) {
		clients := []*process{w.use(uuid, "256", w.pipes(uuid)), w.use(uuid, "all", w.pipes(uuid)), w.use(uuid, "all", w.pipes(uuid), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M")}
		for i, most := range []int{256, limit, 1024} {
			if p := clients[i]; p.problem != "" || p.mib == 0 || p.mib > most {
				w.t.Errorf("client %d has %d MiB, %q, want at most %d", i, p.mib, p.problem, most)
			} else {
				attr(w.t, "limitAndAllocatedMiB", [2]int{most, p.mib})
			}
		}
		if p := w.use(uuid, strconv.Itoa(limit+512), w.pipes(uuid)); p.problem == "" {
			w.t.Errorf("an allocation of %d MiB succeeds, and the limit is %d", limit+512, limit)
		}
		for i, p := range clients {
			if err := p.again(); p.problem == "" && err != nil {
				w.t.Errorf("after the allocation of another client failed, client %d: %v", i, err)
			}
		}
	})
	part("limits of threads", func(w *world) {
		all, limited, fewer := w.use(uuid, "multiprocessors"), w.use(uuid, "multiprocessors", w.pipes(uuid)), w.use(uuid, "multiprocessors", w.pipes(uuid), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10")
		attr(w.t, "multiprocessors", map[string]int{"card": all.mib, "client": limited.mib, "clientWith10Percent": fewer.mib})
		if all.mib == 0 || limited.mib == 0 || fewer.mib == 0 {
			w.t.Fatalf("the problems are %q, %q, %q", all.problem, limited.problem, fewer.problem)
		}
		if limited.mib > (all.mib+replicas-1)/replicas+2 || fewer.mib >= limited.mib {
			w.t.Errorf("of %d multiprocessors, a client has %d, and one with 10 percent %d", all.mib, limited.mib, fewer.mib)
		}
	})
	part("a client that crashes", func(w *world) {
		crash := w.use(uuid, "64", w.pipes(uuid))
		other := w.use(uuid, "64", w.pipes(uuid))
		w.must(crash.cmd.Process.Kill())
		_ = crash.cmd.Wait() // It was killed.
		if err := other.again(); other.problem != "" || err != nil {
			w.t.Errorf("after a client was killed, another has the problem %q, %v", other.problem, err)
		}
		if err := other.end(); err != nil {
			w.t.Error(err)
		}
	})
	part("a client with a fault", func(w *world) {
		other := w.use(uuid, "64", w.pipes(uuid))
		if p := w.use(uuid, "fault", w.pipes(uuid)); !strings.HasPrefix(p.problem, "error cuCtxSynchronize 7") {
			w.t.Errorf("the client with the fault: %q", p.problem)
		}
		attr(w.t, "otherClient", text(other.again()))
		_ = other.end() // NVIDIA documents that a fault ends the work of the others.
		w.serves(uuid, "after a client with a fault")
	})
	part("a server that is killed", func(w *world) {
		other := w.use(uuid, "64", w.pipes(uuid))
		server := w.server(uuid)
		if server == 0 {
			w.t.Skip("the daemon tells no process of its server")
		}
		w.must(syscall.Kill(server, syscall.SIGKILL))
		attr(w.t, "otherClient", text(other.again()))
		_ = other.end() // A client may have failed with its server.
		w.serves(uuid, "after the server was killed")
		if got := w.kubelet.Allocatable(resource); got != replicas*len(w.devices) {
			w.t.Errorf("%d replicas take pods", got)
		}
	})
	part("a daemon that is killed", func(w *world) {
		other := w.use(uuid, "64", w.pipes(uuid))
		pid := w.daemonPID(uuid)
		w.must(syscall.Kill(pid, syscall.SIGKILL))
		attr(w.t, "otherClient", text(other.again()))
		w.eventually("another daemon runs", func() bool { return w.daemonPID(uuid) != pid && w.daemonPID(uuid) != 0 })
		_ = other.end() // A client may have failed with its daemon.
		w.allocatable(replicas * len(w.devices))
		w.serves(uuid, "after the daemon was killed")
	})
	part("other limits", func(w *world) {
		w.share("mps", 2*replicas)
		w.allocatable(2 * replicas * len(w.devices))
		if p := w.use(uuid, "all", w.pipes(uuid)); p.mib == 0 || p.mib > limit/2 {
			w.t.Errorf("with twice the replicas a client has %d MiB, %q", p.mib, p.problem)
		} else if err := p.end(); err != nil {
			w.t.Error(err)
		}
	})
	part("the end", func(w *world) {
		w.stop(supervisor)
		w.allocatable(0)
		if got := w.mode(uuid); got != before {
			w.t.Errorf("the compute mode was %d and is %d", before, got)
		}
	})
}

func text(err error) string {
	if err != nil {
		return err.Error()
	}
	return "works"
}

// serves checks that a new client of the daemon works within a minute.
func (w *world) serves(uuid, when string) {
	w.t.Helper()
	problem := ""
	w.eventually("a new client works "+when, func() bool {
		p := w.use(uuid, "64", w.pipes(uuid))
		if p.problem != problem {
			problem = p.problem
			w.t.Log(when, ": ", problem)
		}
		return p.problem == "" && p.end() == nil
	})
}

// server returns a process of the servers of a GPU's daemon, or 0 if the daemon tells none.
func (w *world) server(uuid string) int {
	ask := exec.CommandContext(w.t.Context(), mps.Program)
	ask.Env, ask.Stdin = append(os.Environ(), w.pipes(uuid)), strings.NewReader("get_server_list\n")
	out, err := ask.Output()
	w.must(err)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return pid
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
