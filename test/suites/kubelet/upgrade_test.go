package kubelet_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// statusTime is longer than the kubelet of a test takes to report its Node's status.
const statusTime = 2500 * time.Millisecond

// watchLowest returns the smallest number of replicas that the Node has had since the last call.
func (w *world) watchLowest() func() int64 {
	w.t.Helper()
	const unknown = int64(1) << 30
	var lowest atomic.Int64
	lowest.Store(unknown)
	nodes := w.node.Client().CoreV1().Nodes()
	watch, err := nodes.Watch(w.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + w.node.Name()})
	w.must(err)
	w.t.Cleanup(watch.Stop)
	go func() {
		for e := range watch.ResultChan() {
			if node, ok := e.Object.(*corev1.Node); ok {
				q := node.Status.Allocatable[gpus.Resource]
				lowest.Store(min(lowest.Load(), q.Value()))
			}
		}
	}()
	return func() int64 {
		w.t.Helper()
		now, err := nodes.Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
		w.must(err)
		q := now.Status.Allocatable[gpus.Resource]
		return min(q.Value(), lowest.Swap(unknown))
	}
}

// registrations counts the registrations in the agents' log.
func (w *world) registrations(agent *kubelet.Process) int {
	w.t.Helper()
	log, err := os.ReadFile(agent.Log())
	w.must(err)
	return bytes.Count(log, []byte("Registered with the kubelet"))
}

// successor starts an agent beside another one, as an upgrade with maxSurge does, or after it has ended, and returns when the kubelet has accepted it.
func (w *world) successor(former *kubelet.Process, p gpus.Plugin) *kubelet.Process {
	w.t.Helper()
	before := w.registrations(former)
	agent := w.start(p)
	w.registers(agent, before)
	return agent
}

// registers waits until the kubelet has accepted a new agent. Until then, the Node may still have the replicas of one that has ended, but the kubelet rejects pods.
func (w *world) registers(agent *kubelet.Process, before int) {
	w.t.Helper()
	w.eventually(func() error {
		if w.registrations(agent) == before {
			return errors.New("the new agent is not registered")
		}
		return nil
	})
}

// kubeletVersion returns the kubelet's version, such as "v1.37.2".
func (w *world) kubeletVersion() string {
	w.t.Helper()
	node, err := w.node.Client().CoreV1().Nodes().Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
	w.must(err)
	return node.Status.NodeInfo.KubeletVersion
}

// takes checks that a new pod gets a replica.
func (w *world) takes(name string) {
	w.t.Helper()
	w.create(name)
	w.running(name)
	w.delete(name)
}

// Kubelets since 1.37 keep a plugin's connection by the path of its socket, and refuse a second one on the same path.
func TestReplicasStayWhenComponentsAreReplaced(t *testing.T) {
	t.Parallel()
	p := build(t, gpus.Karve)
	w, agent := serving(t, p, 1, 10)
	pods := w.settle(2)
	lowest := w.watchLowest()
	busy := func(during func()) {
		w.must(w.node.SignalKubelet(syscall.SIGSTOP))
		during()
		time.Sleep(time.Second)
		w.must(w.node.SignalKubelet(syscall.SIGCONT))
	}
	for i, step := range []struct {
		what string
		do   func()
		// away is set if the kubelet has no agent, or the Node no kubelet, for a moment.
		away bool
	}{
		{what: "a reload", do: func() {
			w.must(w.Share(12))
			w.allocatable(12)
			w.must(w.Share(10))
			w.allocatable(10)
		}},
		{what: "an upgrade with two agents", do: func() {
			former := agent
			agent = w.successor(former, p)
			w.takes("with-two-agents")
			former.Stop(10 * time.Second)
		}},
		{what: "an upgrade from an agent that hangs", do: func() {
			former := agent
			w.must(former.Signal(syscall.SIGSTOP))
			agent = w.successor(former, p)
			former.Kill()
		}},
		// An older kubelet forgets the devices of a resource with the agent that registered last.
		{what: "a new agent that is withdrawn", away: w.kubeletVersion() < "v1.37", do: func() {
			w.successor(agent, p).Kill()
			time.Sleep(6 * time.Second) // The former agent notices it.
		}},
		{what: "a restart of containerd", do: func() { w.must(w.node.RestartContainerd(t.Context())) }},
		{what: "a notice of the kubelet's start while it is busy", do: func() {
			busy(func() {
				now := time.Now()
				w.must(os.Chtimes(w.node.Dir()+"/kubelet/device-plugins/kubelet.sock", now, now))
			})
		}},
		{what: "an agent that ended", away: true, do: func() {
			agent.Stop(10 * time.Second)
			agent = w.successor(agent, p)
		}},
		{what: "an agent that was killed", away: true, do: func() {
			agent.Kill()
			agent = w.successor(agent, p)
		}},
		{what: "an agent that was killed while the kubelet is busy", away: true, do: func() {
			before := w.registrations(agent)
			busy(func() {
				agent.Kill()
				agent = w.start(p)
			})
			w.registers(agent, before)
		}},
		{what: "a restart of the kubelet", away: true, do: func() { w.must(w.node.RestartKubelet(t.Context())) }},
		{what: "a restart of the kubelet with two agents", away: true, do: func() {
			former := agent
			agent = w.successor(former, p)
			w.must(w.node.RestartKubelet(t.Context()))
			w.allocatable(10)
			former.Stop(10 * time.Second)
		}},
	} {
		lowest()
		began := time.Now()
		step.do()
		if !step.away {
			time.Sleep(statusTime)
			if low := lowest(); low < 10 {
				t.Errorf("after %s: the Node had %d replicas for a moment", step.what, low)
			}
		}
		w.allocatable(10)
		w.takes(fmt.Sprint("after-", i))
		pods.unchanged()
		t.Logf("after %s: %s", step.what, time.Since(began).Round(100*time.Millisecond))
		if t.Failed() {
			t.Fatalf("after %s", step.what)
		}
	}
}

// earlier returns the path of the agent of an earlier release, which tools/old-release builds.
func earlier(t *testing.T) string {
	t.Helper()
	release := os.Getenv("KARVE_OLD_RELEASE")
	if release == "" {
		t.Skip("KARVE_OLD_RELEASE names no earlier release")
	}
	return filepath.Join(release, "karve-node")
}

// TestAgentIsUpgradedAndRolledBack replaces the agent of an earlier release by this one while pods run, and goes back. Both serve what one Node promises.
func TestAgentIsUpgradedAndRolledBack(t *testing.T) {
	path := earlier(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	old := p
	old.Path = path
	w, agent := serving(t, old, 1, 10)
	pods := w.settle(2)
	for i, next := range []gpus.Plugin{p, old, p} {
		began := time.Now()
		agent.Stop(10 * time.Second)
		agent = w.successor(agent, next)
		w.allocatable(10)
		w.takes(fmt.Sprint("after-", i))
		pods.unchanged()
		t.Logf("%s served after %s", next.Path, time.Since(began).Round(100*time.Millisecond))
	}
}

// With backend DRA, the earlier release knows the claims that this one has prepared, and the other way round.
func TestAgentIsUpgradedAndRolledBackByDRA(t *testing.T) {
	path := earlier(t)
	t.Parallel()
	w := newDRAWorld(t, 1)
	w.plugin.Args = append(w.plugin.Args, "--state-dir="+filepath.Join(w.node.Dir(), "state"))
	this := w.plugin.Path
	w.plugin.Path = path
	agent := w.run()
	w.published(1)
	w.ask("stays", "first-0", "second-0")
	for _, name := range []string{"stays", "first-0", "second-0"} {
		w.running(name)
	}
	held, err := w.held()
	w.must(err)
	if len(held) != 3 {
		t.Fatalf("pods hold %v, want three replicas", held)
	}
	for i, next := range []string{this, path, this} {
		registered := w.registrations(agent)
		agent.Stop(10 * time.Second)
		w.plugin.Path = next
		agent = w.run()
		w.registers(agent, registered)
		w.holds(held)
		// A pod gets a replica that no pod of the other agent holds. When those have ended, another gets the replica of one of them.
		starts := func(name string) string {
			w.ask(name)
			w.running(name)
			now, err := w.held()
			w.must(err)
			return now[name]
		}
		first, second := fmt.Sprint("first-", i+1), fmt.Sprint("second-", i+1)
		held = map[string]string{"stays": held["stays"], first: starts(first)}
		w.delete(fmt.Sprint("first-", i))
		w.delete(fmt.Sprint("second-", i))
		w.holds(held)
		held[second] = starts(second)
		w.holds(held)
		if pod := w.get("stays"); pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("with %s, the pod is %s: %s", next, pod.Status.Phase, pod.Status.Message)
		}
	}
}
