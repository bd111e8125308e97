//go:build cgo && gpu

package gpu_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
		other.afterwards(w.t)
		_ = other.end() // NVIDIA documents that a fault ends the work of the others.
		w.serves(uuid, "after a client with a fault")
	})
	part("another user with read-only pipes", func(w *world) {
		w.must(os.Chmod(w.dir, 0o755)) //nolint:gosec // The user goes through it.
		client := filepath.Join(w.dir, "client")
		program, err := os.ReadFile(w.client)
		w.must(err)
		w.must(os.WriteFile(client, program, 0o755)) //nolint:gosec // The user runs it.
		is := isolation{User: nobody, ReadOnly: mps.PipeDir(w.mpsDir(), uuid)}
		p := w.start(&process{cmd: w.in(is, []string{"CUDA_VISIBLE_DEVICES=" + uuid, w.pipes(uuid)}, client, "all")})
		if p.problem != "" || p.mib > limit {
			w.t.Errorf("the client has %d MiB, %q", p.mib, p.problem)
		} else if err := p.end(); err != nil {
			w.t.Error(err)
		}
		control, err := exec.LookPath(mps.Program)
		w.must(err)
		pid := w.daemonPID(uuid)
		for _, command := range []string{"get_default_active_thread_percentage", "set_default_active_thread_percentage 90", "set_default_device_pinned_mem_limit 0 99G", "quit"} {
			cmd := w.in(is, []string{w.pipes(uuid)}, control)
			cmd.Stdin = strings.NewReader(command + "\n")
			out, err := cmd.CombinedOutput()
			attr(w.t, "command", map[string]string{"is": command, "answer": strings.TrimSpace(string(out)), "ends": fmt.Sprint(err)})
		}
		time.Sleep(time.Second)
		if got := w.ask(uuid, "get_default_active_thread_percentage"); got != "25.0" || w.daemonPID(uuid) != pid {
			w.t.Errorf("after commands of another user, the daemon has the percentage %q and the process %d, and had %d", got, w.daemonPID(uuid), pid)
		}
		w.serves(uuid, "after commands of another user")
	})
	part("a server that is killed", func(w *world) {
		other := w.use(uuid, "64", w.pipes(uuid))
		server := w.server(uuid)
		if server == 0 {
			w.t.Skip("the daemon tells no process of its server")
		}
		w.must(syscall.Kill(server, syscall.SIGKILL))
		other.afterwards(w.t)
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
		other.afterwards(w.t)
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

// nobody is a user without rights.
const nobody = 65534

// afterwards adds to the report what becomes of a client of MPS after something happened to another part.
func (p *process) afterwards(t *testing.T) {
	t.Helper()
	for _, after := range []time.Duration{0, 2 * time.Second} {
		time.Sleep(after)
		said := "works"
		if err := p.again(); err != nil {
			said = err.Error()
		}
		attr(t, "otherClientAfter"+after.String(), said)
	}
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
	pid, _ := strconv.Atoi(w.ask(uuid, "get_server_list"))
	return pid
}

// ask asks the daemon of a GPU.
func (w *world) ask(uuid, question string) string {
	w.t.Helper()
	ask := exec.CommandContext(w.t.Context(), mps.Program)
	ask.Env, ask.Stdin = append(os.Environ(), w.pipes(uuid)), strings.NewReader(question+"\n")
	out, err := ask.Output()
	w.must(err)
	return strings.TrimSpace(string(out))
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
