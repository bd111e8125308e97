package kubelet_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/test/harness/await"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// world is a node with GPUs. Its cluster has nodes of other tests as well.
type world struct {
	*gpus.Machine
	t      *testing.T
	node   *kubelet.Node
	lister podresources.PodResourcesListerClient
}

// common is the cluster of all tests, since a cluster costs more than a test. nodes counts the nodes that it has had.
var (
	common *cluster.Cluster
	nodes  atomic.Int32
)

func TestMain(m *testing.M) {
	if kubelet.Missing() != nil {
		os.Exit(m.Run())
	}
	os.Exit(cluster.RunWith(m, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}}, &common))
}

func newWorld(t *testing.T, state nvmltest.State) *world {
	t.Helper()
	kubelet.Require(t)
	nvmltest.Build(t)
	n := kubelet.OnCluster(t, common, kubelet.Config{Name: fmt.Sprintf("node-%d", nodes.Add(1))})
	m, err := gpus.New(t.Context(), n, state)
	if err != nil {
		t.Fatal(err)
	}
	lister, connection, err := n.Resources()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return &world{Machine: m, t: t, node: n, lister: lister}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start(p gpus.Plugin) *kubelet.Process {
	w.t.Helper()
	process, err := w.Start(p)
	w.must(err)
	return process
}

// eventually calls check until it succeeds, and fails the test with its last error after a minute.
func (w *world) eventually(check func() error) {
	w.t.Helper()
	await.Nil(w.t, time.Minute, check)
}

// allocatable waits until both the kubelet and the API server report want replicas.
func (w *world) allocatable(want int) {
	w.t.Helper()
	w.eventually(func() error {
		got, err := kubelet.Allocatable(w.t.Context(), w.lister, gpus.Resource)
		if err != nil || got != want {
			return fmt.Errorf("the kubelet has %d allocatable, %v, want %d", got, err, want) //nolint:errorlint // It may be nil.
		}
		node, err := w.node.Client().CoreV1().Nodes().Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable[gpus.Resource]; q.Value() != int64(want) {
			return fmt.Errorf("the Node has %s allocatable, want %d", q.String(), want)
		}
		return nil
	})
}

func (w *world) pods() typedcorev1.PodInterface {
	return w.node.Client().CoreV1().Pods(w.node.Namespace())
}

func (w *world) create(name string) *corev1.Pod {
	w.t.Helper()
	pod, err := w.pods().Create(w.t.Context(), w.node.Pod(name, gpus.Resource, 1), metav1.CreateOptions{})
	w.must(err)
	return pod
}

func (w *world) delete(name string) {
	w.t.Helper()
	w.must(w.pods().Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
}

func (w *world) get(name string) *corev1.Pod {
	w.t.Helper()
	pod, err := w.pods().Get(w.t.Context(), name, metav1.GetOptions{})
	w.must(err)
	return pod
}

// running waits until a pod runs and returns its environment. It fails the test at once if the pod fails.
func (w *world) running(name string) map[string]string {
	w.t.Helper()
	var environment map[string]string
	w.eventually(func() error {
		pod := w.get(name)
		switch pod.Status.Phase {
		case corev1.PodRunning:
		case corev1.PodFailed:
			w.t.Fatalf("%s failed: %s: %s", name, pod.Status.Reason, pod.Status.Message)
		default:
			return fmt.Errorf("%s is %s %v", name, pod.Status.Phase, pod.Status.Conditions)
		}
		var err error
		environment, err = w.node.Environment(pod)
		return err
	})
	return environment
}

// devices returns the devices of each pod as reported by the kubelet.
func (w *world) devices() map[string][]string {
	w.t.Helper()
	got, err := kubelet.Devices(w.t.Context(), w.lister, gpus.Resource)
	w.must(err)
	return got
}

func build(t *testing.T, how func(context.Context) (gpus.Plugin, error)) gpus.Plugin {
	t.Helper()
	kubelet.Require(t)
	p, err := how(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serving returns a machine with T4s and the plugin, once the plugin serves the given number of replicas per GPU.
func serving(t *testing.T, p gpus.Plugin, count, replicas int) (*world, *kubelet.Process) {
	t.Helper()
	w := newWorld(t, nvmltest.T4(count))
	w.must(w.Share(replicas))
	started := w.start(p)
	w.allocatable(count * replicas)
	return w, started
}

func TestNVIDIAPluginSharesGPU(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.NVIDIA)
	w, _ := serving(t, p, 1, 2)
	for _, name := range []string{"a", "b"} {
		w.create(name)
		if got, want := w.running(name)["NVIDIA_VISIBLE_DEVICES"], nvmltest.T4(1).Devices[0].UUID; got != want {
			t.Errorf("%s: NVIDIA_VISIBLE_DEVICES=%q, want %s", name, got, want)
		}
	}
	if got := w.devices(); len(got) != 2 {
		t.Errorf("devices: %v", got)
	}
}

// settled are running pods that must survive what the test does to the components below them.
type settled struct {
	world   *world
	uids    map[string]types.UID
	devices map[string][]string
}

func (w *world) settle(count int) *settled {
	w.t.Helper()
	s := &settled{world: w, uids: map[string]types.UID{}}
	for i := range count {
		s.uids[w.create(fmt.Sprintf("settled-%d", i)).Name] = ""
	}
	for name := range s.uids {
		w.running(name)
		s.uids[name] = w.get(name).UID
	}
	s.devices = w.devices()
	return s
}

// unchanged fails the test if a pod no longer runs, was restarted or has another device.
func (s *settled) unchanged() {
	w := s.world
	w.t.Helper()
	var now map[string][]string
	// A kubelet that has just started reports no pods for a moment.
	w.eventually(func() error {
		now = w.devices()
		for name := range s.uids {
			if len(now[s.world.node.Namespace()+"/"+name]) == 0 {
				return fmt.Errorf("the kubelet knows of no devices of %s", name)
			}
		}
		return nil
	})
	for name, uid := range s.uids {
		pod := w.get(name)
		if pod.UID != uid || pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			w.t.Errorf("%s is %s: %s %s", name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
		}
		if key := s.world.node.Namespace() + "/" + name; !slices.Equal(now[key], s.devices[key]) {
			w.t.Errorf("%s had %v and has %v", name, s.devices[key], now[key])
		}
	}
}

func TestTenPodsShareGPUAndEleventhWaits(t *testing.T) {
	t.Parallel()
	p := build(t, gpus.Karve)
	w, _ := serving(t, p, 1, 10)
	for i := range 10 {
		w.create(fmt.Sprintf("pod-%d", i))
	}
	for i := range 10 {
		if got, want := w.running(fmt.Sprintf("pod-%d", i))["NVIDIA_VISIBLE_DEVICES"], nvmltest.T4(1).Devices[0].UUID; got != want {
			t.Errorf("pod-%d: NVIDIA_VISIBLE_DEVICES=%q, want %s", i, got, want)
		}
	}
	seen := map[string]bool{}
	devices := w.devices() // The kubelet refuses a caller that asks often.
	for _, ids := range devices {
		for _, id := range ids {
			seen[id] = true
		}
	}
	if len(seen) != 10 {
		t.Errorf("the pods have the replicas %v, want ten of them", slices.Sorted(maps.Keys(seen)))
	}
	// What the agent writes to its Node as karve.sh/gpu-holders.
	holders, err := plugin.PodResources{Socket: w.node.PodResourcesSocket()}.Holders(t.Context())
	w.must(err)
	for _, h := range holders {
		if want := devices[h.Pod]; h.Container != "main" || len(h.Devices) != 1 || !slices.Equal(h.Devices, want) {
			t.Errorf("container %s of %s holds %v, want %v", h.Container, h.Pod, h.Devices, want)
		}
	}
	if len(holders) != 10 {
		t.Errorf("there are %d holders, want ten", len(holders))
	}
	w.create("eleventh")
	w.eventually(func() error {
		for _, c := range w.get("eleventh").Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("the eleventh pod is %v", w.get("eleventh").Status)
	})
	w.delete("pod-3")
	w.running("eleventh")
}

func TestReloadKeepsRunningPods(t *testing.T) {
	t.Parallel()
	p := build(t, gpus.Karve)
	w, _ := serving(t, p, 1, 10)
	pods := w.settle(6)

	// Replicas that pods hold stay allocatable, even if there are more of them than configured. Their number shrinks as pods end.
	w.must(w.Share(4))
	w.allocatable(6)
	pods.unchanged()
	for _, name := range []string{"settled-0", "settled-1", "settled-2"} {
		w.delete(name)
		delete(pods.uids, name)
	}
	w.allocatable(4)
	w.create("fourth")
	w.running("fourth")
	w.must(w.Share(10))
	w.allocatable(10)
	for i := range 6 {
		w.create(fmt.Sprintf("more-%d", i))
	}
	for i := range 6 {
		w.running(fmt.Sprintf("more-%d", i))
	}
	pods.unchanged()
}

// Held replicas are found again after restarts: a new kubelet reports no pods at first, and a new agent has no memory.
func TestHeldReplicasStayListedAcrossRestarts(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w, agent := serving(t, p, 1, 10)
	pods := w.settle(6)
	w.must(w.Share(4))
	w.allocatable(6)

	stable := func(after string) {
		t.Helper()
		w.allocatable(6)
		pods.unchanged()
		time.Sleep(3 * time.Second) // A fault may only show when the kubelet syncs again.
		w.allocatable(6)
		pods.unchanged()
		if t.Failed() {
			t.Fatalf("after %s", after)
		}
	}
	w.must(w.node.RestartKubelet(t.Context()))
	stable("a restart of the kubelet")
	agent.Kill()
	agent = w.start(p)
	stable("a restart of the agent")
	agent.Kill()
	w.node.StopKubelet()
	agent = w.start(p)
	w.must(w.node.StartKubelet(t.Context()))
	stable("a restart of both, the agent first")
	w.node.StopKubelet()
	agent.Kill()
	w.must(w.node.StartKubelet(t.Context()))
	w.start(p)
	stable("a restart of both, the kubelet first")
}

func TestNoPodFailsWhileKubeletRestarts(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w, _ := serving(t, p, 1, 10)
	pods := w.settle(3)
	churn := w.StartChurn(t.Context(), "churn", 3)
	for range times(t) {
		time.Sleep(2 * time.Second)
		churn.Absence(func() {
			w.must(w.node.RestartKubelet(t.Context()))
			w.allocatable(10)
		})
		pods.unchanged()
	}
	churn.Stop()
	w.judge(churn, pods)
}

func TestNoPodFailsWhenAgentIsKilled(t *testing.T) {
	t.Parallel()
	p := build(t, gpus.Karve)
	w, agent := serving(t, p, 1, 10)
	pods := w.settle(3)
	churn := w.StartChurn(t.Context(), "churn", 3)
	for range times(t) {
		time.Sleep(2 * time.Second)
		churn.Absence(func() {
			agent.Kill()
			agent = w.start(p)
			w.allocatable(10)
		})
		pods.unchanged()
	}
	churn.Stop()
	w.judge(churn, pods)
	// The last agent still runs.
	w.must(agent.Signal(syscall.Signal(0)))
}

func (w *world) judge(churn *gpus.Churn, pods *settled) {
	w.t.Helper()
	w.t.Logf("%d pods came and went, %d were refused while the kubelet or the agent was away", churn.Ran, churn.Refused)
	if churn.Failed > 0 || churn.Ran == 0 {
		w.t.Errorf("%d pods ran and %d failed: %q", churn.Ran, churn.Failed, churn.Failures)
	}
	w.allocatable(10)
	pods.unchanged()
}
