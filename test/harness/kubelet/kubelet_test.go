package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/test/harness/await"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
)

func create(t *testing.T, n *kubelet.Node, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := n.Client().CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func remove(t *testing.T, n *kubelet.Node, pod *corev1.Pod) {
	t.Helper()
	pods := n.Client().CoreV1().Pods(pod.Namespace)
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.Nil(t, time.Minute, func() error {
		if _, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{}); err == nil {
			return fmt.Errorf("%s is still there", pod.Name)
		}
		return nil
	})
}

// running waits until the pod runs and has printed its environment.
func running(t *testing.T, n *kubelet.Node, pod *corev1.Pod) map[string]string {
	t.Helper()
	var environment map[string]string
	await.Nil(t, time.Minute, func() error {
		now, err := n.Client().CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s is %s: %s %s", pod.Name, now.Status.Phase, now.Status.Reason, now.Status.Message)
		}
		environment, err = n.Environment(now)
		return err
	})
	return environment
}

func TestPodRunsOnRealKubelet(t *testing.T) {
	began := time.Now()
	n := kubelet.ForTest(t, kubelet.Config{})
	t.Logf("ready after %s", time.Since(began))

	pod := n.Pod("says", "", 0)
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "SAYS", Value: "hello world"}}
	began = time.Now()
	pod = create(t, n, pod)
	if got := running(t, n, pod)["SAYS"]; got != "hello world" {
		t.Errorf("SAYS=%q", got)
	}
	t.Logf("the pod ran after %s", time.Since(began))
	if err := n.RestartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	running(t, n, pod)
	began = time.Now()
	remove(t, n, pod)
	t.Logf("the pod was gone after %s", time.Since(began))
}

func TestNodeStopCleansUp(t *testing.T) {
	cluster.Long(t)
	kubelet.Require(t)
	c := cluster.ForTest(t, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}})
	before := traces(t, "", "")
	for i := range 3 {
		n, err := kubelet.Start(t.Context(), c, kubelet.Config{Name: fmt.Sprintf("node-%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		pod := n.Pod(fmt.Sprintf("pod-%d", i), "", 0)
		pod.Spec.NodeName = n.Name()
		running(t, n, create(t, n, pod))
		if during := traces(t, n.Dir(), n.Subnet()); len(during) == len(before) {
			t.Errorf("traces does not find the running node: %q", during)
		}
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		// The kernel removes network interfaces with a delay.
		await.Nil(t, time.Minute, func() error {
			if after := traces(t, n.Dir(), n.Subnet()); !slices.Equal(before, after) {
				return fmt.Errorf("before:\n%s\nafter Stop:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
			return nil
		})
		if _, err := os.Stat(n.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the node's folder is left: %v", err)
		}
	}
}

// traces returns what a node can leave on a machine: mounts, cgroups, network interfaces, processes and settings. Without a node only the settings
// remain.
func traces(t *testing.T, dir, subnet string) []string {
	t.Helper()
	var found []string
	for _, setting := range []string{"kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "net/ipv4/ip_forward"} {
		value, err := os.ReadFile("/proc/sys/" + setting)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, setting+" "+strings.TrimSpace(string(value)))
	}
	if dir == "" {
		return found
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} {
		paths, err := filepath.Glob(pattern + filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	within := netip.MustParsePrefix(subnet)
	for _, a := range interfaces {
		if address, err := netip.ParsePrefix(a.String()); err == nil && within.Contains(address.Addr()) {
			found = append(found, a.String())
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		line, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(line), dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// TestNodeDiesWithItsTest kills a test that has a node. The victim cannot clean up, and runs in a process of its own.
func TestNodeDiesWithItsTest(t *testing.T) {
	if os.Getenv("KARVE_TEST_VICTIM") == "1" {
		n := kubelet.ForTest(t, kubelet.Config{})
		running(t, n, create(t, n, n.Pod("victim", "", 0)))
		fmt.Printf("node %s %s\n", n.Dir(), n.Subnet())
		time.Sleep(time.Hour)
	}
	kubelet.Require(t)
	before := traces(t, "", "")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	victim := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestNodeDiesWithItsTest$")
	// The logs of the victim and of its cluster remain there. TempDir is too long: the paths of sockets must be short.
	temporary, err := os.MkdirTemp("", "karve-victim-") //nolint:usetesting // See above.
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	victim.Env = append(os.Environ(), "KARVE_TEST_VICTIM=1", "TMPDIR="+temporary)
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var dir, subnet string
	if _, err := fmt.Fscanf(out, "node %s %s\n", &dir, &subnet); err != nil {
		t.Fatal(err)
	}
	if during := traces(t, dir, subnet); len(during) < len(before)+2 {
		t.Errorf("traces of the node: %q, want containerd's and the kubelet's processes at least", during)
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	await.Nil(t, time.Minute, func() error {
		if after := traces(t, dir, subnet); !slices.Equal(before, after) {
			return fmt.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(dir, "containerd")); err == nil {
		t.Error("containerd's files are left")
	}
}
