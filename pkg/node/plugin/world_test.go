package plugin_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/node/sharing"
)

const (
	whole  = "nvidia.com/gpu"
	shared = "nvidia.com/gpu.shared"
)

// clk is the system's clock, or the clock of the test's bubble.
var clk = clock.RealClock{}

func uuid(i int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i) }

func gpus(n int) []gpu.Device {
	var out []gpu.Device
	for i := range n {
		out = append(out, gpu.Device{UUID: uuid(i), Index: i, NUMANode: i % 2, Minor: i})
	}
	return out
}

// world is a manager, its kubelet, and an in-memory network between them, in a bubble.
type world struct {
	t       *testing.T
	net     *plugintest.Memory
	kubelet *plugintest.Kubelet
	m       *plugin.Manager
	stop    func()

	mu    sync.Mutex
	errs  []error
	stood []string
}

func inBubble(t *testing.T, f func(w *world), change ...func(*plugin.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := &plugintest.Memory{}
		w := &world{t: t, net: net, kubelet: &plugintest.Kubelet{Network: net, Dir: "/plugins"}}
		w.startAgent(change...)
		f(w)
		w.stop()
		w.kubelet.Stop()
		synctest.Wait()
	})
}

func (w *world) startAgent(change ...func(*plugin.Config)) {
	config := plugin.Config{
		KubeletSocket: w.kubelet.Socket(), Network: w.net,
		InUse: plugin.PodResources{Socket: w.kubelet.PodResourcesSocket(), Network: w.net},
		Hooks: plugin.Hooks{
			Applied: func(_ time.Duration, err error) { w.errs = append(w.errs, err) },
			StoodBack: func(_, why string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.stood = append(w.stood, why)
			},
		},
	}
	for _, c := range change {
		c(&config)
	}
	w.m = plugin.New(config)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.m.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	w.stop = func() {
		cancel()
		<-done
	}
}

func (w *world) startKubelet() {
	w.t.Helper()
	if err := w.kubelet.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) apply(config string, devices []gpu.Device) error {
	w.t.Helper()
	c, _, err := sharing.Read([]byte(config), true)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.m.Apply(w.t.Context(), c, devices)
}

func (w *world) must(config string, devices []gpu.Device) {
	w.t.Helper()
	if err := w.apply(config, devices); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// settle waits until everything that happens immediately has happened.
func (w *world) settle() { clk.Sleep(300 * time.Millisecond) }

func (w *world) want(resource string, n int) {
	w.t.Helper()
	if got := w.kubelet.Allocatable(resource); got != n {
		w.t.Errorf("%d %s are allocatable, want %d: %v", got, resource, n, w.kubelet.Current(resource).IDs())
	}
}

// standbyMessages returns what the manager reported about standing back.
func (w *world) standbyMessages() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.stood)
}

func (w *world) admit(pod string) plugintest.Grant {
	w.t.Helper()
	g, err := w.kubelet.Admit(w.t.Context(), pod, whole, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

func replicas(n int) string {
	return fmt.Sprintf("sharing: {timeSlicing: {resources: [{name: gpu, replicas: %d}]}}", n)
}

func renamed(n int) string {
	return fmt.Sprintf("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: %d}]}}", n)
}
