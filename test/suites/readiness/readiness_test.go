package readiness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
)

// TestNodeOpensOnceItsReplicasAreAllocatable runs everywhere: it uses a fake kubelet and copies what the kubelet allocates to the Node.
func TestNodeOpensOnceItsReplicasAreAllocatable(t *testing.T) {
	w := newWorld(t)
	claim := w.claim(nil)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}}
	register(n, claim)
	w.must(w.api.Create(t.Context(), n))
	w.waits()

	dir, err := os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	w.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}
	w.must(k.Start(t.Context()))
	t.Cleanup(k.Stop)
	stop := w.copyAllocatable(k)
	defer stop()

	// No controller creates the DaemonSet's pods here.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.agents.Namespace, Name: "agent"}, Spec: w.agents.Spec.Template.Spec}
	pod.Spec.NodeName = name
	w.must(w.api.Create(t.Context(), pod))
	program, env := w.agent(pod, t.TempDir())
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	w.must(err)
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), program)
	env = append(env, "KUBELET_SOCKET="+k.Socket(), "POD_RESOURCES_SOCKET="+k.PodResourcesSocket())
	cmd.Env = env
	cmd.Stderr = log
	w.must(cmd.Start())
	began := time.Now()
	w.opens(log.Name())
	t.Logf("open %s after the agent's start", time.Since(began).Round(time.Millisecond))
	w.must(cmd.Process.Signal(syscall.SIGTERM))
	w.must(cmd.Wait())
}

// copyAllocatable copies the kubelet's allocatable replicas to the Node until it is stopped.
func (w *world) copyAllocatable(k *plugintest.Kubelet) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := -1
		for ctx.Err() == nil {
			if n := k.Allocatable(v1alpha1.ResourceGPUShared); n != last {
				patch := fmt.Sprintf(`{"status":{"capacity":{%q:"%d"},"allocatable":{%q:"%d"}}}`, v1alpha1.ResourceGPUShared, n, v1alpha1.ResourceGPUShared, n)
				if _, err := w.clients.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err == nil {
					last = n
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// TestPodsRunOnceReplicasAreAllocatable uses a real kubelet and a real scheduler. The DaemonSet's pod gives the agent its identity, and a pod that requests
// a replica starts once the taint is removed.
func TestPodsRunOnceReplicasAreAllocatable(t *testing.T) {
	kubelet.Require(t)
	w := newWorld(t, cluster.Scheduler, cluster.ControllerManager)
	machine := kubelet.OnCluster(t, w.cluster, kubelet.Config{Name: name})
	claim := w.claim(nil)
	w.eventually(func() error {
		n := w.node()
		register(n, claim)
		return w.api.Update(t.Context(), n)
	})
	workload := machine.Pod("workload", v1alpha1.ResourceGPUShared, 1)
	w.must(w.api.Create(t.Context(), workload))
	pod := w.placed()
	w.typed()
	w.waits()

	dir := filepath.Join(machine.Dir(), "agent")
	program, env := w.agent(pod, dir)
	port, err := w.cluster.FreePort(t.Context())
	w.must(err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	env = append(env, "METRICS_ADDRESS="+address, "POD_LOG_ROOT="+machine.Dir())
	process, err := machine.Run(kubelet.Program{Name: "karve-node", Path: program, Env: env})
	w.must(err)
	w.opens(process.Log())
	w.eventually(func() error {
		p, err := w.clients.CoreV1().Pods(workload.Namespace).Get(t.Context(), workload.Name, metav1.GetOptions{})
		if err == nil && p.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("the pod is %s: %s %v", p.Status.Phase, p.Status.Message, p.Status.Conditions)
		}
		if err == nil {
			workload = p
		}
		return err
	})
	w.attributes(workload, address, filepath.Join(dir, library))
	w.cordons(workload, process.Log())
	process.Stop(5 * time.Second)
}

// cordons checks that a GPU which somebody cordons takes no pods, and that running pods stay.
func (w *world) cordons(running *corev1.Pod, log string) {
	w.t.Helper()
	for _, step := range []struct {
		value     any
		replicas  int64
		status    corev1.ConditionStatus
		condition string
	}{
		{"0,1,2,3", 0, corev1.ConditionTrue, nodecontract.ReasonCordoned},
		{nvmltest.T4(gpus).Devices[3].UUID + ",four", 3 * replicas, corev1.ConditionTrue, nodecontract.ReasonCordonInvalid},
		{nil, gpus * replicas, corev1.ConditionFalse, nodecontract.ReasonUncordoned},
	} {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{nodecontract.GPUCordonAnnotation: step.value}}})
		w.must(err)
		_, err = w.clients.CoreV1().Nodes().Patch(w.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		w.must(err)
		w.eventually(func() error {
			n := w.node()
			said := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == nodecontract.CordonCondition && c.Status == step.status && c.Reason == step.condition
			})
			if !said || allocatable(n) != step.replicas {
				return fmt.Errorf("with the GPUs %v cordoned the node has %d replicas, want %d: %v", step.value, allocatable(n), step.replicas, n.Status.Conditions)
			}
			return nil
		})
		now, err := w.clients.CoreV1().Pods(running.Namespace).Get(w.t.Context(), running.Name, metav1.GetOptions{})
		w.must(err)
		if now.UID != running.UID || now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount > 0 {
			w.t.Errorf("the pod is %s: %s", now.Status.Phase, now.Status.Message)
		}
	}
	text, err := os.ReadFile(log)
	w.must(err)
	if strings.Contains(string(text), "Forbidden") {
		w.t.Errorf("the agent is refused something:\n%s", text)
	}
}

// attributes checks that the agent's metrics attribute the GPU use of a container's process to its pod.
func (w *world) attributes(pod *corev1.Pod, address, state string) {
	w.t.Helper()
	machine := nvmltest.T4(gpus)
	machine.Devices[2].Usage.Processes = []gpu.Process{{PID: w.pid(pod), MemoryMiB: 512, SMPercent: 20}}
	w.must(os.WriteFile(state, []byte(machine.String()), 0o600))
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	w.must(err)
	w.eventually(func() error {
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if want := fmt.Sprintf("karve_pod_gpu_memory_used_bytes{namespace=%q,pod=%q,container=%q,gpu=%q} %g\n", pod.Namespace, pod.Name,
			pod.Spec.Containers[0].Name, machine.Devices[2].UUID, float64(512<<20)); err == nil && !strings.Contains(string(text), want) {
			err = fmt.Errorf("no metric %s", want)
		}
		return err
	})
}

// pid returns the PID of a process of the pod's container, in the PID namespace of the machine.
func (w *world) pid(pod *corev1.Pod) int {
	w.t.Helper()
	id := pod.Status.ContainerStatuses[0].ContainerID
	id = id[strings.LastIndex(id, "/")+1:]
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	w.must(err)
	for _, path := range groups {
		if content, err := os.ReadFile(path); err != nil || !strings.Contains(string(content), id) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		w.must(err)
		for line := range strings.Lines(string(status)) {
			// NSpid has one number per namespace, from ours to the container's.
			if numbers := strings.Fields(line); numbers[0] == "NSpid:" && len(numbers) == 4 {
				pid, err := strconv.Atoi(numbers[2])
				w.must(err)
				return pid
			}
		}
	}
	w.t.Fatal("the pod has no process")
	return 0
}

// placed waits for the DaemonSet's pod on the machine. The startup taint does not keep it away.
func (w *world) placed() *corev1.Pod {
	w.t.Helper()
	var found *corev1.Pod
	w.eventually(func() error {
		pods, err := w.clients.CoreV1().Pods(w.agents.Namespace).List(w.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		if err == nil && len(pods.Items) != 1 {
			err = errors.New("the machine has no pod of the DaemonSet")
		}
		if err == nil {
			found = &pods.Items[0]
		}
		return err
	})
	return found
}

// typed checks that the API server type-checks the expressions of the chart's policies without warnings.
func (w *world) typed() {
	w.t.Helper()
	w.eventually(func() error {
		policies, err := w.clients.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(w.t.Context(), metav1.ListOptions{})
		w.must(err)
		if len(policies.Items) == 0 {
			w.t.Fatal("the chart has no policies")
		}
		for _, p := range policies.Items {
			if p.Status.TypeChecking == nil {
				return fmt.Errorf("%s is not checked", p.Name)
			}
			for _, warning := range p.Status.TypeChecking.ExpressionWarnings {
				w.t.Errorf("%s: %s: %s", p.Name, warning.FieldRef, warning.Warning)
			}
		}
		return nil
	})
}
