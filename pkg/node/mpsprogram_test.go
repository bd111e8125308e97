package node

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/mps/mpstest"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
)

func TestMain(m *testing.M) {
	if os.Getenv(mpstest.Env) != "" {
		os.Exit(mpstest.Main(os.Args[1:], os.Stdin, os.Stdout))
	}
	_ = flag.Set("test.parallel", "8") // Most tests wait. A flag of the command line counts instead.
	dir, err := os.MkdirTemp("", "karve-node")
	if err != nil {
		panic(err)
	}
	programDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// TestProgramsShareGPUsWithMPS runs the agent and the program for MPS daemons as they are released, with a fake driver and a fake control daemon.
func TestProgramsShareGPUsWithMPS(t *testing.T) {
	t.Parallel()
	library, machine := nvmltest.New(t, nvmltest.T4(2))
	uuid := machine.State.Devices[0].UUID
	dir, err := os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Unmount(mps.ShmDir(filepath.Join(dir, "mps"), uuid), syscall.MNT_DETACH) // It may not be mounted.
		_ = syscall.Unmount(mps.ShmDir(filepath.Join(dir, "mps"), machine.State.Devices[1].UUID), syscall.MNT_DETACH)
		_ = os.RemoveAll(dir)
	})
	shm := "64"
	if os.Geteuid() != 0 {
		shm = "0" // Only root may mount.
	}
	program, control := buildProgram(t), mpstest.Install(t)
	k := &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	config, shared := filepath.Join(t.TempDir(), "config.yaml"), filepath.Join(dir, "mps")
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	withMPS := func(n int) string {
		return fmt.Sprintf("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}", n)
	}
	configure(withMPS(16))
	var log lines
	run := func(args ...string) *exec.Cmd {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(machine.Environment(library), "MPS_DIR="+shared, "MPS_SHM_MIB="+shm, "PATH="+filepath.Dir(control)+":"+os.Getenv("PATH"))
		cmd.Stderr = &log
		cmd.WaitDelay = time.Second // Daemons of a supervisor that was killed keep its output open.
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	eventually := func(what string, f func() bool) {
		t.Helper()
		for began := time.Now(); !f(); time.Sleep(5 * time.Millisecond) {
			if time.Since(began) > 45*time.Second {
				t.Fatalf("never: %s\n%s", what, log.text.String())
			}
		}
	}
	listed := func(n int) func() bool { return func() bool { return k.Allocatable(resource) == n } }
	ask := func(command string) string {
		client := exec.CommandContext(t.Context(), control)
		client.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+mps.PipeDir(shared, uuid))
		client.Stdin = strings.NewReader(command + "\n")
		out, err := client.Output()
		if err != nil {
			return "no answer"
		}
		return strings.TrimSpace(string(out))
	}
	mode := func() string {
		text, err := os.ReadFile(nvmltest.ModeFile(machine.Path, 0))
		if err != nil {
			return "0"
		}
		return strings.TrimSpace(string(text))
	}
	daemon := func() int {
		text, _ := os.ReadFile(filepath.Join(mps.PipeDir(shared, uuid), "nvidia-cuda-mps-control.pid")) // It may be about to be written.
		pid, _ := strconv.Atoi(string(text))
		return pid
	}

	agent := run("--kubelet-socket", k.Socket(), "--pod-resources-socket", k.PodResourcesSocket(), "--config-file", config, "--metrics-address", "none", "--state-dir", "none")
	eventually("the agent says what is missing", func() bool { return log.has("nobody runs MPS daemons on the node") })
	if !listed(0)() {
		t.Error("replicas are listed without daemons")
	}
	began := time.Now()
	supervisor := run("mps-daemon")
	eventually("32 replicas", listed(32))
	t.Logf("start of the daemons to listed: %s", time.Since(began).Round(time.Millisecond))
	if got := mode(); got != "3" {
		t.Errorf("the compute mode is %s, want 3, EXCLUSIVE_PROCESS", got)
	}
	if memory, threads := ask("get_default_device_pinned_mem_limit 0"), ask("get_default_active_thread_percentage"); memory != "960M" || threads != "6.0" {
		t.Errorf("the limits are %s and %s", memory, threads)
	}
	grant, err := k.Admit(t.Context(), "client", resource, 1)
	if err != nil || grant.Response.GetEnvs()["CUDA_MPS_PIPE_DIRECTORY"] == "" || len(grant.Response.GetMounts()) != 2 {
		t.Fatalf("a pod gets %v, %v", grant.Response, err)
	}
	for _, m := range grant.Response.GetMounts() {
		if info, err := os.Stat(m.GetHostPath()); err != nil || !info.IsDir() {
			t.Errorf("%s is not there for a pod: %v", m.GetHostPath(), err)
		}
	}

	for i := range 4 {
		pid := daemon()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		eventually("another daemon with the limits", func() bool {
			now := daemon()
			return now != pid && now != 0 && ask("get_default_device_pinned_mem_limit 0") == "960M"
		})
		t.Logf("kill %d: another one answers after %s", i+1, time.Since(began).Round(time.Millisecond))
		eventually("32 replicas", listed(32))
	}
	outages := 0
	for _, list := range k.History(resource) {
		if list.Healthy() == 16 {
			outages++
		}
	}
	if outages == 0 {
		t.Error("no outage of a daemon took its replicas out")
	}

	configure(withMPS(8))
	eventually("the limits of fewer replicas", func() bool { return ask("get_default_device_pinned_mem_limit 0") == "1920M" && listed(16)() })
	for name, pid := range map[string]int{"agent": agent.Process.Pid, "program for MPS daemons": supervisor.Process.Pid} {
		kib := resident(t, pid)
		if kib > maxResident {
			t.Errorf("the %s has %d KiB resident", name, kib)
		}
		t.Logf("the %s has %.1f MiB resident", name, float64(kib)/1024)
	}

	_ = supervisor.Process.Kill()
	_ = supervisor.Wait()
	eventually("no replicas while nobody runs daemons", listed(0))
	if got := mode(); got != "3" {
		t.Errorf("the compute mode is %s after a kill; the test would show nothing", got)
	}
	left := daemon()
	supervisor = run("mps-daemon")
	eventually("16 replicas", listed(16))
	if daemon() == left {
		t.Error("a daemon that nobody supervises still serves")
	}

	k.Delete("client")
	configure(replicas(10))
	eventually("20 time-sliced replicas", listed(20))
	if got := mode(); got != "0" {
		t.Errorf("the compute mode stays %s with time-slicing", got)
	}
	for _, cmd := range []*exec.Cmd{supervisor, agent} {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, log.text.String())
		}
	}
}
