package operator

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	karvemetrics "karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/sizing"
)

// cgroups is where a container finds its control group.
const cgroups = "/sys/fs/cgroup"

// limitMemory sets the limit of the Go runtime below that of the container, and returns the latter in bytes. It returns false if there is no limit.
func limitMemory() (int64, bool) {
	limit, ok := sizing.Limit(cgroups, debug.SetMemoryLimit(-1))
	if ok {
		debug.SetMemoryLimit(sizing.Soft(limit))
	}
	return limit, ok
}

// watchMemory limits the memory of the process and warns when it is short, if its container has a limit.
func watchMemory(m ctrl.Manager, all *karvemetrics.Metrics, o Options, held func() sizing.Objects) error {
	limit, ok := limitMemory()
	if !ok {
		return nil
	}
	all.MemoryLimit.Set(float64(limit))
	w, err := newMemoryWatch(limit, o.LeaderElectionNamespace, held, eventRecorder{m.GetEventRecorder(leaseName)}, clock.RealClock{})
	if err != nil {
		return err
	}
	if err := m.Add(w); err != nil {
		return fmt.Errorf("adding the watch of the memory: %w", err)
	}
	return nil
}

// memoryWatch warns when the memory has been short for some minutes, before the kernel ends the process. Every replica has one, because every replica has the caches.
type memoryWatch struct {
	limit    int64
	held     func() sizing.Objects
	recorder events.EventRecorder
	clock    clock.PassiveClock
	// pod is the controller's own pod.
	pod *corev1.Pod

	watch sizing.Watch
}

// newMemoryWatch returns a watch for the process, which runs in a pod in the namespace. The pod's name is the host name.
func newMemoryWatch(limit int64, namespace string, held func() sizing.Objects, recorder events.EventRecorder, clk clock.PassiveClock) (*memoryWatch, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("reading the host's name: %w", err)
	}
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: host}}
	return &memoryWatch{limit: limit, held: held, recorder: recorder, clock: clk, pod: pod}, nil
}

// NeedLeaderElection returns false, because standby replicas also need memory.
func (m *memoryWatch) NeedLeaderElection() bool { return false }

// Start checks the memory every minute until the context ends.
func (m *memoryWatch) Start(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	wait.UntilWithContext(ctx, func(context.Context) { m.look(log, usedMemory()) }, time.Minute)
	return nil
}

// look warns if the memory has been short for some minutes. used is the memory in use, in bytes.
func (m *memoryWatch) look(log logr.Logger, used int64) {
	var warn bool
	if m.watch, warn = m.watch.Next(used, m.limit, m.clock.Now()); !warn {
		return
	}
	held := m.held()
	message := sizing.Warning(used, m.limit, held)
	log.Info("The memory limit is nearly reached", "usedBytes", used, "limitBytes", m.limit, "pods", held.Pods, "nodes", held.Nodes, "nodeClaims", held.NodeClaims, "advice", message)
	m.recorder.Eventf(m.pod, nil, corev1.EventTypeWarning, "MemoryShort", "Check", "%s", message)
}

// usedMemory returns the memory that the Go runtime has from the operating system, in bytes. This is what its limit counts.
func usedMemory() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
