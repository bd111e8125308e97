package mps_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/mps/mpstest"
)

func TestMain(m *testing.M) {
	if os.Getenv(mpstest.Env) != "" {
		os.Exit(mpstest.Main(os.Args[1:], os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// driver is a driver with the compute modes of GPUs.
type driver struct {
	mu      sync.Mutex
	devices []gpu.Device
	refuse  error
}

func (d *driver) Init() (gpu.Driver, error) { return gpu.Driver{}, nil }
func (d *driver) Shutdown() error           { return nil }

func (d *driver) Devices() ([]gpu.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]gpu.Device(nil), d.devices...), nil
}

func (d *driver) SetComputeMode(uuid string, mode gpu.ComputeMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.devices {
		if d.devices[i].UUID == uuid && d.refuse == nil {
			d.devices[i].ComputeMode = mode
		}
	}
	return d.refuse
}

func (d *driver) mode(i int) gpu.ComputeMode {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.devices[i].ComputeMode
}

// world is a node on which a supervisor runs.
type world struct {
	t       *testing.T
	dir     string
	program string
	driver  *driver
	shmMiB  int64
	// keepMode leaves the compute modes as they are.
	keepMode bool
	end      context.CancelFunc
	ended    chan error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, program: mpstest.Install(t), driver: &driver{devices: gputest.T4s(2)}}
	w.run()
	t.Cleanup(func() {
		w.stop()
		_ = os.RemoveAll(dir)
	})
	return w
}

func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	w.end, w.ended = cancel, make(chan error, 1)
	s := &mps.Supervisor{Dir: w.dir, Program: w.program, Library: w.driver, ShmMiB: w.shmMiB, KeepMode: w.keepMode, Every: 20 * time.Millisecond}
	go func() { w.ended <- s.Run(ctx) }()
}

func (w *world) stop() {
	w.t.Helper()
	w.end()
	if err := <-w.ended; err != nil {
		w.t.Error(err)
	}
	w.ended <- nil
}

func (w *world) want(limits ...mps.Limits) {
	w.t.Helper()
	if err := (mps.Wanted{GPUs: limits}).Write(w.dir); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ready waits until the daemons enforce the limits.
func (w *world) ready(limits ...mps.Limits) {
	w.t.Helper()
	w.eventually("the daemons are ready", func() error {
		status, err := mps.ReadStatus(w.dir)
		if err != nil {
			return err
		}
		if down := status.Unready(limits, time.Now()); len(down) > 0 {
			return fmt.Errorf("%v", down)
		}
		return nil
	})
}

// ask asks the daemon of a GPU.
func (w *world) ask(uuid, command string) string {
	w.t.Helper()
	client := exec.CommandContext(w.t.Context(), w.program)
	client.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+mps.PipeDir(w.dir, uuid))
	client.Stdin = strings.NewReader(command + "\n")
	var out bytes.Buffer
	client.Stdout = &out
	if err := client.Run(); err != nil {
		return "no answer"
	}
	return strings.TrimSpace(out.String())
}

func (w *world) pid(uuid string) int {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(mps.PipeDir(w.dir, uuid), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		w.t.Fatal(err)
	}
	pid, _ := strconv.Atoi(string(text)) // It may be about to be written.
	return pid
}

func both(devices []gpu.Device) (a, b mps.Limits) {
	return mps.Limits{UUID: devices[0].UUID, MemoryMiB: 1536, ThreadPercent: 10, MultiUser: true}, mps.Limits{UUID: devices[1].UUID, MemoryMiB: 960, ThreadPercent: 6}
}

func TestEachGPUHasDaemonWithItsLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := both(w.driver.devices)
	w.want(a, b)
	w.ready(a, b)
	for _, l := range []mps.Limits{a, b} {
		if got, want := w.ask(l.UUID, "get_default_device_pinned_mem_limit 0"), fmt.Sprintf("%dM", l.MemoryMiB); got != want {
			t.Errorf("%s: the limit of memory is %s, want %s", l.UUID, got, want)
		}
		if got, want := w.ask(l.UUID, "get_default_active_thread_percentage"), fmt.Sprintf("%d.0", l.ThreadPercent); got != want {
			t.Errorf("%s: the percentage is %s, want %s", l.UUID, got, want)
		}
	}
	for i := range 2 {
		if got := w.driver.mode(i); got != gpu.ComputeExclusiveProcess {
			t.Errorf("GPU %d has the compute mode %d", i, got)
		}
	}
	// The server of the user 1000 runs as root if users share it.
	for uuid, want := range map[string]string{a.UUID: "4000", b.UUID: "4000"} {
		w.ask(uuid, "start_server -uid 1000")
		w.ask(uuid, "start_server -uid 1001")
		if got := w.ask(uuid, "get_server_list"); got != want {
			t.Errorf("%s has the servers %q, want %s", uuid, got, want)
		}
	}

	a.MemoryMiB, a.ThreadPercent = 768, 5
	w.want(a, b)
	w.ready(a, b)
	if memory, threads := w.ask(a.UUID, "get_device_pinned_mem_limit 4000 0"), w.ask(a.UUID, "get_active_thread_percentage 4000"); memory != "768M" || threads != "5.0" {
		t.Errorf("a server that ran before the limits changed has %s and %s", memory, threads)
	}
	if got := w.ask(b.UUID, "get_device_pinned_mem_limit 4000 0"); got != "960M" {
		t.Errorf("the other GPU has %s", got)
	}

	before := w.pid(a.UUID)
	a.MultiUser = false
	w.want(a, b)
	w.ready(a, b)
	if w.pid(a.UUID) == before {
		t.Error("a daemon for several users became one for one without a restart")
	}
}

func TestLimitsThatClientChangesAreSetAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := both(w.driver.devices)
	w.want(a, b)
	w.ready(a, b)
	w.ask(a.UUID, "start_server -uid 1000")
	for _, c := range []struct{ change, query, want string }{
		{"set_default_device_pinned_mem_limit 0 40G", "get_default_device_pinned_mem_limit 0", "1536M"},
		{"set_default_active_thread_percentage 100", "get_default_active_thread_percentage", "10.0"},
		{"set_device_pinned_mem_limit 4000 0 40G", "get_device_pinned_mem_limit 4000 0", "1536M"},
	} {
		w.ask(a.UUID, c.change)
		w.eventually("the limit is back after "+c.change, func() error {
			if got := w.ask(a.UUID, c.query); got != c.want {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		})
	}
}

func TestKilledDaemonIsStartedAgainWithItsLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := both(w.driver.devices)
	w.want(a, b)
	w.ready(a, b)
	other := w.pid(b.UUID)
	for range 4 {
		pid := w.pid(a.UUID)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.eventually("another one answers", func() error {
			if now := w.pid(a.UUID); now == pid || now == 0 {
				return errors.New("it is the same one")
			}
			return nil
		})
		w.eventually("the one that followed has the limit", func() error { // The status may be that of the one that was killed.
			if got := w.ask(a.UUID, "get_default_device_pinned_mem_limit 0"); got != "1536M" {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		})
		w.ready(a, b)
	}
	if w.pid(b.UUID) != other {
		t.Error("the daemon of the other GPU was started again, too")
	}
}

func TestComputeModeIsRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := both(w.driver.devices)
	w.want(a, b)
	w.ready(a, b)
	w.want(a)
	w.eventually("the GPU without a daemon has its mode back", func() error {
		if got := w.driver.mode(1); got != gpu.ComputeDefault {
			return fmt.Errorf("it is %d", got)
		}
		return nil
	})
	if got := w.ask(b.UUID, "get_server_list"); got != "no answer" {
		t.Errorf("its daemon answers %q", got)
	}
	w.stop()
	if got := w.driver.mode(0); got != gpu.ComputeDefault {
		t.Errorf("after the supervisor the mode is %d", got)
	}
	if status, err := mps.ReadStatus(w.dir); err != nil || len(status.Daemons) != 0 {
		t.Errorf("after the supervisor the status is %v, %v", status, err)
	}
}

func TestComputeModeIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stop()
	w.keepMode = true
	w.run()
	a, b := both(w.driver.devices)
	w.want(a, b)
	w.ready(a, b)
	if got := w.driver.mode(0); got != gpu.ComputeDefault {
		t.Errorf("the mode is %d", got)
	}
}

// A supervisor that is killed can leave a daemon and a compute mode behind.
func TestNextSupervisorTakesOverAfterKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := both(w.driver.devices)
	for _, l := range []mps.Limits{a, b} {
		if err := os.MkdirAll(mps.PipeDir(w.dir, l.UUID), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.dir, l.UUID, "compute-mode"), []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.stop()
	left := exec.CommandContext(t.Context(), w.program, "-f")
	left.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+mps.PipeDir(w.dir, a.UUID))
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = left.Wait() }()
	for i := range 2 {
		if err := w.driver.SetComputeMode(w.driver.devices[i].UUID, gpu.ComputeExclusiveProcess); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.dir, w.driver.devices[i].UUID, "compute-mode"), []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("the daemon that is left answers", func() error {
		if w.ask(a.UUID, "get_default_active_thread_percentage") != "100.0" {
			return errors.New("it does not")
		}
		return nil
	})
	w.want(a)
	w.run()
	w.ready(a)
	if w.pid(a.UUID) == left.Process.Pid {
		t.Error("the daemon that is left still serves")
	}
	w.eventually("the mode of the GPU that needs no daemon any more is restored", func() error {
		if got := w.driver.mode(1); got != gpu.ComputeDefault {
			return fmt.Errorf("it is %d", got)
		}
		return nil
	})
	w.stop()
	if got := w.driver.mode(0); got != gpu.ComputeDefault {
		t.Errorf("the mode that the killed supervisor has changed stays %d", got)
	}
}

func TestWhatKeepsDaemonFromStartingIsReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*world)
		says  string
	}{
		"no program": {func(w *world) { w.program = "/nowhere/nvidia-cuda-mps-control" }, "NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
		"no rights":  {func(w *world) { w.driver.refuse = errors.New("the process may not do this") }, "EXCLUSIVE_PROCESS: the process may not do this"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stop()
			c.spoil(w)
			a, _ := both(w.driver.devices)
			w.want(a)
			w.run()
			w.eventually("it is in the status", func() error {
				status, err := mps.ReadStatus(w.dir)
				if down := status.Down([]mps.Limits{a}, time.Now()); err != nil || !strings.Contains(down[a.UUID], c.says) {
					return fmt.Errorf("%v, %w", down, err)
				}
				return nil
			})
		})
	}
}
