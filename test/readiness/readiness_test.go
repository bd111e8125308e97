package readiness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/test/cluster"
	"karve.sh/karve/test/kubelet"
)

// TestANodeOpensWithItsReplicas runs everywhere: the kubelet is a stand-in, of which the test tells the API server.
func TestANodeOpensWithItsReplicas(t *testing.T) {
	w := newWorld(t)
	claim := w.claim()
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
	stop := w.tell(k)
	defer stop()

	// No controller makes the DaemonSet's pods here.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.agents.Namespace, Name: "agent"}, Spec: w.agents.Spec.Template.Spec}
	pod.Spec.NodeName = name
	w.must(w.api.Create(t.Context(), pod))
	program, env := w.agent(pod, t.TempDir())
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	w.must(err)
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(env, "KUBELET_SOCKET="+k.Socket(), "POD_RESOURCES_SOCKET="+k.PodResourcesSocket())
	cmd.Stderr = log
	w.must(cmd.Start())
	began := time.Now()
	w.opens(log.Name())
	t.Logf("open %s after the agent's start", time.Since(began).Round(time.Millisecond))
	w.must(cmd.Process.Signal(syscall.SIGTERM))
	w.must(cmd.Wait())
}

// tell writes to the Node what the kubelet has, until stopped.
func (w *world) tell(k *plugintest.Kubelet) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		told := -1
		for ctx.Err() == nil {
			if n := k.Allocatable(v1alpha1.ResourceGPUShared); n != told {
				patch := fmt.Sprintf(`{"status":{"capacity":{%q:"%d"},"allocatable":{%q:"%d"}}}`, v1alpha1.ResourceGPUShared, n, v1alpha1.ResourceGPUShared, n)
				if _, err := w.clients.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err == nil {
					told = n
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

// TestPodsRunOnANodeOnceItsReplicasAreThere has a real kubelet and a real scheduler: the DaemonSet's own pod gives the agent its identity, and a
// pod that waits for a replica starts when the taint goes.
func TestPodsRunOnANodeOnceItsReplicasAreThere(t *testing.T) {
	kubelet.Require(t)
	w := newWorld(t, cluster.Scheduler, cluster.ControllerManager)
	machine, err := kubelet.Start(t.Context(), w.cluster, kubelet.Config{Name: name})
	w.must(err)
	t.Cleanup(func() {
		if err := machine.Stop(); err != nil {
			t.Error(err)
		}
	})
	claim := w.claim()
	w.eventually(func() error {
		n := w.node()
		register(n, claim)
		return w.api.Update(t.Context(), n)
	})
	workload := kubelet.Pod("default", "workload", v1alpha1.ResourceGPUShared, 1)
	w.must(w.api.Create(t.Context(), workload))
	pod := w.placed()
	w.waits()

	program, env := w.agent(pod, filepath.Join(machine.Dir(), "agent"))
	process, err := machine.Run(kubelet.Program{Name: "karve-node", Path: program, Env: env})
	w.must(err)
	w.opens(process.Log())
	w.eventually(func() error {
		p, err := w.clients.CoreV1().Pods(workload.Namespace).Get(t.Context(), workload.Name, metav1.GetOptions{})
		if err == nil && p.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("the pod is %s: %s %v", p.Status.Phase, p.Status.Message, p.Status.Conditions)
		}
		return err
	})
	process.Stop(5 * time.Second)
}

// placed waits for the DaemonSet's pod on the machine, which the startup taint does not keep away.
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
