//go:build cgo && gpu

package mps_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/nvml"
)

// overLimit allocates device memory in steps of 64 MiB with the driver's library until it fails, and prints how many MiB it got.
const overLimit = `
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, device, pointer, mib = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64(), 0
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
while mib < 65536 and cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0:
    mib += 64
print(mib)
`

// keptMode leaves the compute mode of GPUs as it is.
type keptMode struct{ *nvml.Library }

func (keptMode) SetComputeMode(string, gpu.ComputeMode) error { return nil }

// TestRealDaemon needs a machine with a GPU of compute capability 7.0 or newer that nobody uses, the driver's nvidia-cuda-mps-control, and root:
// go test -tags gpu -run TestRealDaemon ./pkg/node/mps. It changes the compute mode of the first GPU and restores it, unless KARVE_KEEP_COMPUTE_MODE is set.
func TestRealDaemon(t *testing.T) {
	program, err := exec.LookPath(mps.Program)
	if err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may set the compute mode")
	}
	library := nvml.New(nvml.Options{})
	if _, err := library.Init(); err != nil {
		t.Skip(err)
	}
	devices, err := library.Devices()
	if err != nil || len(devices) == 0 || devices[0].MIG || devices[0].ComputeMajor < 7 {
		t.Skipf("there is no GPU that MPS can share: %v, %v", devices, err)
	}
	if usage, err := library.Usage(devices[0].UUID); err != nil || len(usage.Processes) > 0 {
		t.Skipf("the GPU is in use: %v, %v", usage.Processes, err)
	}
	if err := library.Shutdown(); err != nil {
		t.Fatal(err)
	}
	mode := func() gpu.ComputeMode {
		t.Helper()
		if _, err := library.Init(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = library.Shutdown() }()
		devices, err := library.Devices()
		if err != nil {
			t.Fatal(err)
		}
		return devices[0].ComputeMode
	}
	before, exclusive := mode(), gpu.ComputeExclusiveProcess
	var modes mps.Library = library
	if os.Getenv("KARVE_KEEP_COMPUTE_MODE") != "" {
		modes, exclusive = keptMode{library}, before
	}

	dir, err := os.MkdirTemp("", "mps") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w := &world{t: t, dir: dir, program: program}
	limits := mps.Limits{UUID: devices[0].UUID, MemoryMiB: 2048, ThreadPercent: 25, MultiUser: true}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&mps.Supervisor{Dir: dir, Program: program, Library: modes}).Run(ctx) }()
	stop := func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	defer stop()
	w.want(limits)
	w.ready(limits)
	if got := mode(); got != exclusive {
		t.Errorf("the compute mode is %d", got)
	}
	if got := w.ask(limits.UUID, "get_default_active_thread_percentage"); !strings.HasPrefix(got, "25") {
		t.Errorf("the percentage of threads is %q", got)
	}
	t.Run("an allocation beyond the limit fails", func(t *testing.T) {
		python, err := exec.LookPath("python3")
		if err != nil {
			t.Skip(err)
		}
		for env, most := range map[string]int{"": 2048, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M": 1024} {
			client := exec.CommandContext(t.Context(), python, "-c", overLimit)
			client.Env = slices.DeleteFunc(append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+mps.PipeDir(dir, limits.UUID), env), func(e string) bool { return e == "" })
			out, err := client.Output()
			if err != nil {
				t.Fatalf("the client failed: %v", err)
			}
			if got := number(t, strings.TrimSpace(string(out))); got == 0 || got > most {
				t.Errorf("with %q a client got %d MiB, want at most %d", env, got, most)
			}
		}
	})
	pid := w.pid(limits.UUID)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	w.ready(limits)
	if w.pid(limits.UUID) == pid {
		t.Error("the daemon that was killed still answers")
	}
	stop()
	if got := mode(); got != before {
		t.Errorf("the compute mode was %d and is %d", before, got)
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
