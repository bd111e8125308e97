//go:build cgo && gpu

package gpu_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/nvml"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/suites/gpu/cost"
)

const (
	maxClients = 16
	buffersMiB = 2 * 64 // of a client, in load.c
	// costsTimeout is for all loads of one number of clients.
	costsTimeout = time.Minute
)

// work is what the client's "calibrate" prints: the size of the loads, which is the same for all clients.
type work map[string]int

// loader is a client that runs loads.
type loader struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// TestCosts measures what sharing a GPU costs, and emits a [cost.Row] for each measurement. It fails only if clients starve or fail: speed is no criterion.
// -short measures two clients for moments.
func TestCosts(t *testing.T) {
	w := newWorld(t)
	w.whole(7)
	alone := w.calibrate()
	t.Logf("the work of the loads on a %s: %v", w.devices[0].Product, alone)

	t.Run(cost.TimeSlicing, func(t *testing.T) {
		w := w.again(t)
		w.share("timeSlicing", maxClients)
		w.run()
		w.allocatable(maxClients * len(w.devices))
		w.measure(cost.TimeSlicing, alone, func(int) []string { return nil })
	})
	for interval, mode := range cost.Intervals {
		t.Run(mode, func(t *testing.T) {
			if os.Getenv("KARVE_TIME_SLICE") == "" {
				t.Skip("KARVE_TIME_SLICE is not set, and without it the interval of the card is left alone")
			}
			w := w.again(t)
			w.interval(interval + 1)
			t.Cleanup(func() { w.interval(0) })
			w.share("timeSlicing", maxClients)
			w.run()
			w.allocatable(maxClients * len(w.devices))
			w.measure(mode, alone, func(int) []string { return nil })
		})
	}
	t.Run(cost.MPS, func(t *testing.T) {
		w := w.again(t)
		client := w.daemon()
		w.measure(cost.MPS, alone, func(int) []string { return client })
	})
	t.Run(cost.MPSThreads, func(t *testing.T) {
		w := w.again(t)
		client := w.daemon()
		w.measure(cost.MPSThreads, alone, func(clients int) []string {
			return append(slices.Clone(client), fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", nodecontract.DefaultMPS.Threads(int64(clients))))
		})
	})
}

// again returns a world of a subtest, once the driver has forgotten the programs before.
func (w *world) again(t *testing.T) *world {
	t.Helper()
	before := &world{t: t, devices: w.devices}
	for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(100 * time.Millisecond) {
		if _, _, processes := before.memory(); processes == 0 {
			break
		}
	}
	return newWorld(t)
}

// interval sets the interval of time slices of the first GPU: 0 is the default, and 1 to 3 are short, medium and long.
func (w *world) interval(n int) {
	w.t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(w.t.Context()), "nvidia-smi", "compute-policy", "-i", w.devices[0].UUID, fmt.Sprint("--set-timeslice=", n)).CombinedOutput()
	if err != nil {
		w.t.Fatalf("setting the interval of time slices: %v: %s", err, out)
	}
}

// daemon has the agent share the GPUs with MPS, without a limit of threads, and returns the environment of clients. It skips the test if MPS does not work here.
func (w *world) daemon() []string {
	w.t.Helper()
	if os.Geteuid() != 0 {
		w.t.Skip("MPS daemons need root")
	}
	w.environment = w.serve(map[string]string{
		nodecontract.ResourceAnnotation: resource, nodecontract.ReplicasPerGPUAnnotation: fmt.Sprint(maxClients),
		nodecontract.MPSAnnotation: nodecontract.MPS{MemoryOvercommitPercent: 100, ActiveThreadPercent: 100, Users: nodecontract.MPSUsersAny}.String(),
	}, http.NotFoundHandler())
	w.run()
	w.daemons()
	uuid := w.devices[0].UUID
	for began := time.Now(); w.kubelet.Allocatable(resource) != maxClients*len(w.devices); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			status, err := mps.ReadStatus(w.mpsDir())
			w.t.Skipf("the MPS daemons do not work here: %+v, %v", status, err)
		}
	}
	p := w.use(uuid, "64", w.pipes(uuid))
	if p.problem != "" {
		w.t.Skipf("no program can use MPS here: %s", p.problem)
	}
	w.must(p.end())
	return []string{w.pipes(uuid)}
}

// measure measures all loads with 1 to 16 clients, whose environment depends on their number.
func (w *world) measure(mode string, alone work, environment func(clients int) []string) {
	seconds, counts := 1.2, []int{1, 2, 4, 8, maxClients}
	if testing.Short() {
		seconds, counts = 0.1, counts[:2]
	}
	used, _, _ := w.memory()
	for _, n := range counts {
		if !w.loads(mode, n, seconds, used, alone, environment(n)) {
			return // More clients would fail, too.
		}
	}
}

// loads measures all loads with a number of clients, which have one context each, and returns whether it could.
func (w *world) loads(mode string, clients int, seconds float64, usedBefore int64, alone work, environment []string) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), costsTimeout)
	defer cancel()
	var all []*loader
	defer func() {
		for _, l := range all {
			_ = l.in.Close()
			if err := l.cmd.Wait(); err != nil {
				w.t.Errorf("%s with %d clients: a client ended with %v", mode, clients, err)
			}
		}
	}()
	began := time.Now()
	for range clients {
		all = append(all, w.load(ctx, alone["multiprocessors"], environment))
	}
	for _, l := range all {
		if line := l.line(); line != "ready" {
			w.t.Errorf("%s with %d clients: a client is not ready: %q", mode, clients, line)
			return false
		}
	}
	ready := time.Since(began)
	used, ofProcesses, processes := w.memory()
	w.t.Logf("%s, clients: %d, which were ready after %v; the GPU's used memory is %d MiB and was %d, and %d processes have %d", mode, clients, ready.Round(time.Millisecond), used, usedBefore, processes, ofProcesses)
	for _, load := range cost.Loads {
		row := cost.Row{
			Mode: mode, Clients: clients, Load: load,
			MemoryMiBPerClient:  max(0, float64(used-usedBefore)/float64(clients)-buffersMiB),
			ProcessMiBPerClient: max(0, float64(ofProcesses)/float64(clients)-buffersMiB),
		}
		for _, l := range all {
			_, err := fmt.Fprintf(l.in, "%s %d %g\n", load, alone[load], seconds)
			if err != nil {
				w.t.Errorf("%s with %d clients, %s: %v", mode, clients, load, err)
			}
		}
		var results []cost.Result
		for _, l := range all {
			line := l.line()
			var m cost.Result
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				w.t.Errorf("%s with %d clients, %s: a client said %q", mode, clients, load, line)
				return false
			}
			results = append(results, m)
		}
		row.Summarize(results)
		w.t.Attr(cost.Attribute, row.String())
		// With MPS, the driver does not always wake a client that sleeps: on an H100 and an H200, one of eight with short kernels had none for more than a second.
		// Those that poll have their share.
		mayStarve := load == "short" && (mode == cost.MPS || mode == cost.MPSThreads)
		if fair := row.OpsPerSecond / float64(clients); !mayStarve && row.PerClientMin < fair/10 {
			w.t.Errorf("%s with %d clients, %s: one has %.1f operations per second, and a fair share is %.1f", mode, clients, load, row.PerClientMin, fair)
		}
	}
	return true
}

// calibrate asks a client that has the GPU alone how much work the loads are.
func (w *world) calibrate() (alone work) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), costsTimeout)
	defer cancel()
	l := w.load(ctx, 0, nil)
	if line := l.line(); line != "ready" {
		w.t.Fatalf("the client is not ready: %q", line)
	}
	_, err := fmt.Fprintln(l.in, "calibrate")
	w.must(err)
	line := l.line()
	if err := json.Unmarshal([]byte(line), &alone); err != nil {
		w.t.Fatalf("the client said %q", line)
	}
	w.must(l.in.Close())
	w.must(l.cmd.Wait())
	return alone
}

// load starts a client that runs loads on the first GPU.
func (w *world) load(ctx context.Context, multiprocessors int, environment []string) *loader {
	w.t.Helper()
	cmd := exec.CommandContext(ctx, w.client, "load", fmt.Sprint(multiprocessors))
	cmd.Env = append(os.Environ(), append([]string{"CUDA_VISIBLE_DEVICES=" + w.devices[0].UUID}, environment...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	w.must(err)
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	return &loader{cmd: cmd, in: in, out: bufio.NewReader(out)}
}

// line returns the next line that the client prints, or why there is none.
func (l *loader) line() string {
	line, err := l.out.ReadString('\n')
	return cmp.Or(strings.TrimSpace(line), fmt.Sprint(err))
}

// memory returns the used device memory of the first GPU in MiB, how much of it the driver counts for processes, and the number of those.
func (w *world) memory() (used, ofProcesses int64, processes int) {
	w.t.Helper()
	w.library(func(l *nvml.Library) {
		_, err := l.Devices() // It learns the GPUs.
		w.must(err)
		usage, err := l.Usage(w.devices[0].UUID)
		w.must(err)
		used, processes = usage.MemoryUsedMiB, len(usage.Processes)
		for _, p := range usage.Processes {
			ofProcesses += max(0, p.MemoryMiB)
		}
	})
	return used, ofProcesses, processes
}
