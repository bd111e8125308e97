package node

import (
	"bytes"
	"context"
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

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
)

// Limits for the size and the memory of the program. NVIDIA's plugin has 20.5 MB and ships with two other programs.
const (
	maxBytes    = 15_500_000
	maxResident = 25 << 10 // KiB
)

// TestProgramIsSmallAndFast runs the program as tools/build builds it, with a fake driver. It measures time, so no other test runs beside it.
func TestProgramIsSmallAndFast(t *testing.T) {
	library, fake := nvmltest.New(t, nvmltest.T4(4))
	dir, err := os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := buildProgram(t)
	if info, err := os.Stat(program); err != nil || info.Size() > maxBytes {
		t.Errorf("%v bytes, %v", info.Size(), err)
	} else {
		t.Logf("%.1f MB", float64(info.Size())/1e6)
	}
	k := &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	config := filepath.Join(t.TempDir(), "config.yaml")
	configure := func(n int) {
		if err := os.WriteFile(config, []byte(replicas(n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure(10)
	var log lines
	command := func() *exec.Cmd {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, program, "--kubelet-socket", k.Socket(), "--pod-resources-socket", k.PodResourcesSocket(), "--config-file", config, "--metrics-address", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"))
		cmd.Env, cmd.Stderr = fake.Environment(library), &log
		return cmd
	}
	wait := func(what string, n int, since time.Time) {
		t.Helper()
		for k.Allocatable(resource) != n {
			if time.Since(since) > 10*time.Second {
				t.Fatalf("no %s: %d\n%s", what, k.Allocatable(resource), log.text.String())
			}
			time.Sleep(time.Millisecond)
		}
		t.Logf("%s after %s", what, time.Since(since).Round(time.Millisecond))
	}
	for range 3 {
		cmd, began := command(), time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wait("start to listed", 40, began)
		for i, n := range []int{4, 20, 10} {
			if _, err := k.Admit(t.Context(), fmt.Sprint(i), resource, 1); err != nil {
				t.Fatal(err)
			}
			began = time.Now()
			configure(n)
			wait("file to listed", 4*n, began)
		}
		if kib := resident(t, cmd.Process.Pid); kib > maxResident {
			t.Errorf("%d KiB are resident", kib)
		} else {
			t.Logf("%.1f MiB are resident", float64(kib)/1024)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, log.text.String())
		}
	}
}

// TestProgramWithInstancesIsSmallToo runs the program on eight GPUs that are divided into seven instances each, which pods share. It measures time, so no other test runs
// beside it.
func TestProgramWithInstancesIsSmallToo(t *testing.T) {
	library, fake := nvmltest.New(t, nvmltest.A100(8))
	var divided bytes.Buffer
	divided.WriteString("mode 1 1\n")
	for i := range 7 {
		fmt.Fprintf(&divided, "instance %d 0 %d 1\ncompute %d 0 1\n", 7+i, i, 7+i)
	}
	for i := range 8 {
		if err := os.WriteFile(nvmltest.MIGFile(fake.Path, i), divided.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	config := filepath.Join(dir, "config.yaml")
	text := "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 4}]}}"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log lines
	cmd := exec.CommandContext(t.Context(), buildProgram(t), "--kubelet-socket", k.Socket(), "--pod-resources-socket", k.PodResourcesSocket(), "--config-file", config,
		"--metrics-address", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"))
	cmd.Env, cmd.Stderr = fake.Environment(library), &log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for k.Allocatable(small) != 8*7*4 {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d instances are listed\n%s", k.Allocatable(small), log.text.String())
		}
		time.Sleep(time.Millisecond)
	}
	t.Logf("start to listed after %s", time.Since(began).Round(time.Millisecond))
	for i := range 56 {
		if _, err := k.Admit(t.Context(), fmt.Sprint(i), small, 1); err != nil {
			t.Fatal(err)
		}
	}
	if kib := resident(t, cmd.Process.Pid); kib > maxResident {
		t.Errorf("%d KiB are resident", kib)
	} else {
		t.Logf("%.1f MiB are resident", float64(kib)/1024)
	}
}

// programDir is where buildProgram puts the program. TestMain makes it.
var programDir string

// buildProgram builds the program as it is released, once for all tests, and returns its path.
func buildProgram(t *testing.T) string {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(programDir, "karve-node")
}

var build = sync.OnceValue(func() error {
	build := exec.Command("../../tools/build", "node") //nolint:noctx // It outlives the test that needs it first.
	build.Env = append(os.Environ(), "OUT="+programDir)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
})

func resident(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatal("the size is not known")
	return 0
}
