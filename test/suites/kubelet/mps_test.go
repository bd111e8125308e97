package kubelet_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// askMPS asks the daemon of a GPU.
func (w *world) askMPS(uuid, command string) (string, error) {
	conn, err := net.Dial("unix", filepath.Join(mps.PipeDir(w.MPSDir(), uuid), "control"))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintln(conn, command); err != nil {
		return "", err
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil { // The daemon answers an unset limit with nothing.
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return strings.TrimSpace(string(answer)), err
}

// limited waits until the daemon of a GPU has a limit of memory.
func (w *world) limited(uuid, want string) {
	w.t.Helper()
	w.eventually(func() error {
		got, err := w.askMPS(uuid, "get_default_device_pinned_mem_limit 0")
		if err != nil || got != want {
			return fmt.Errorf("the limit is %q, %v, want %s", got, err, want) //nolint:errorlint // It may be nil.
		}
		return nil
	})
}

// daemonPID returns the PID of a daemon in the node's namespace.
func (w *world) daemonPID(uuid string) string {
	pid, err := os.ReadFile(filepath.Join(mps.PipeDir(w.MPSDir(), uuid), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		return ""
	}
	return string(pid)
}

func (w *world) startMPS(p gpus.Plugin) *kubelet.Process {
	w.t.Helper()
	process, err := w.StartMPS(w.t.Context(), p)
	w.must(err)
	return process
}

func TestSixteenPodsShareGPUWithMPS(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.T4(1))
	uuid := nvmltest.T4(1).Devices[0].UUID
	w.must(w.ShareWithMPS(16))
	agent := w.start(p)
	w.waitForLog(agent, "nobody runs MPS daemons on the node", 1)
	w.allocatable(0)
	supervisor := w.startMPS(p)
	w.allocatable(16)
	w.limited(uuid, "960M")
	if mode := w.ComputeMode(0); mode != "3" {
		t.Errorf("the compute mode is %s, want 3, EXCLUSIVE_PROCESS", mode)
	}

	pods := w.settle(16)
	for name := range pods.uids {
		environment := w.running(name)
		if environment["CUDA_MPS_PIPE_DIRECTORY"] != "/run/karve/mps/pipe" || environment["NVIDIA_VISIBLE_DEVICES"] != uuid {
			t.Errorf("%s has the environment %v", name, environment)
		}
		if answer := environment["mps"]; answer != "6.0" {
			t.Errorf("%s asked its daemon for the percentage of threads, which said %q", name, answer)
		}
		if environment["shm"] != "64 MiB" || !strings.Contains(environment["pipe"], "read-only") {
			t.Errorf("%s has %s of shared memory, and when it moves the socket of its daemon: %q", name, environment["shm"], environment["pipe"])
		}
	}
	w.create("seventeenth")
	w.eventually(func() error {
		for _, c := range w.get("seventeenth").Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("the seventeenth pod is %v", w.get("seventeenth").Status)
	})

	for i := range 10 {
		pid := w.daemonPID(uuid)
		kill, err := w.node.Run(kubelet.Program{Name: "kill", Path: "/bin/kill", Args: []string{"-9", pid}})
		w.must(err)
		<-kill.Done()
		began := time.Now()
		w.eventually(func() error {
			if now := w.daemonPID(uuid); now == pid || now == "" {
				return fmt.Errorf("the daemon %s was killed and %q is there", pid, now)
			}
			return nil
		})
		w.limited(uuid, "960M")
		t.Logf("kill %d: back after %s", i+1, time.Since(began).Round(10*time.Millisecond))
	}
	w.allocatable(16)
	pods.unchanged()

	// With fewer replicas, processes that start have more memory.
	w.must(w.ShareWithMPS(8))
	w.limited(uuid, "1920M")
	w.must(w.ShareWithMPS(16))
	w.limited(uuid, "960M")
	pods.unchanged()

	supervisor.Stop(20 * time.Second)
	w.allocatable(0)
	if mode := w.ComputeMode(0); mode != "0" {
		t.Errorf("the compute mode stays %s", mode)
	}
	pods.unchanged()
	supervisor = w.startMPS(p)
	w.allocatable(16)

	// A supervisor that is killed leaves the compute mode to the next one.
	supervisor.Kill()
	w.allocatable(0)
	w.startMPS(p)
	w.allocatable(16)
	pods.unchanged()
	w.delete("settled-3")
	w.running("seventeenth")
}

func TestGPUGoesFromMPSToTimeSlicingWhenItsPodsAreGone(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.T4(1))
	w.must(w.ShareWithMPS(4))
	supervisor := w.startMPS(p)
	agent := w.start(p)
	w.allocatable(4)
	// Processes of all users are clients of the daemon.
	user := w.node.Pod("user", gpus.Resource, 1)
	user.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000))}
	_, err := w.pods().Create(t.Context(), user, metav1.CreateOptions{})
	w.must(err)
	w.create("client")
	for _, name := range []string{"client", "user"} {
		if answer := w.running(name)["mps"]; answer != "25.0" {
			t.Errorf("%s asked its daemon for the percentage of threads, which said %q", name, answer)
		}
	}
	w.delete("user")
	w.eventually(func() error {
		if held := w.devices(); len(held) != 1 {
			return fmt.Errorf("%v are held", held)
		}
		return nil
	})
	w.must(w.Share(10))
	w.waitForLog(agent, w.node.Namespace()+"/client holds "+nvmltest.T4(1).Devices[0].UUID, 1)
	w.allocatable(4)
	w.delete("client")
	w.allocatable(10)
	if mode := w.ComputeMode(0); mode != "0" {
		t.Errorf("the compute mode stays %s", mode)
	}
	w.create("sliced")
	if environment := w.running("sliced"); environment["CUDA_MPS_PIPE_DIRECTORY"] != "" {
		t.Errorf("a pod on a GPU with time-slicing is a client of MPS: %v", environment)
	}
	supervisor.Stop(20 * time.Second)
	w.allocatable(10)
}
