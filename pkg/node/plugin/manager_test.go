package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
)

func TestKubeletListsEveryReplica(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(10), gpus(2))
		w.want(whole, 20)
		request := w.kubelet.Requests()[0]
		if !strings.HasPrefix(request.GetEndpoint(), "karve-gpu-") || request.GetVersion() != "v1beta1" || !request.GetOptions().GetGetPreferredAllocationAvailable() {
			t.Errorf("registered %v", request)
		}
		for _, d := range w.kubelet.Current(whole).Devices {
			if node := d.GetTopology().GetNodes()[0].GetID(); (node == 1) != strings.HasPrefix(d.GetID(), uuid(1)+"::") {
				t.Errorf("%s is near NUMA node %d", d.GetID(), node)
			}
		}
		a, b := w.admit("a"), w.admit("b")
		if a.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"] != uuid(0) || b.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"] != uuid(1) {
			t.Errorf("two pods got %v and %v", a, b)
		}
	})
}

func TestEachResourceHasItsOwnSocket(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4, devices: [1]}]}}", gpus(2))
		w.want(whole, 1)
		w.want(shared, 4)
		if ids := w.kubelet.Current(whole).IDs(); !slices.Equal(ids, []string{uuid(0)}) {
			t.Errorf("a GPU that is not shared is %v", ids)
		}
		var endpoints []string
		for _, r := range w.kubelet.Requests() {
			endpoints = append(endpoints, r.GetEndpoint())
		}
		slices.Sort(endpoints)
		if len(endpoints) != 2 || !strings.HasPrefix(endpoints[0], "karve-gpu-") || !strings.HasPrefix(endpoints[1], "karve-gpu.shared-") {
			t.Errorf("endpoints are %v", endpoints)
		}
	})
}

func TestInvalidRequestIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must("sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 4}]}}", gpus(1))
		for want, ids := range map[string][]string{
			`invalid allocation request for "nvidia.com/gpu": invalid request: maximum request size for shared resources is 1; found 2`: {uuid(0) + "::0", uuid(0) + "::1"},
			"unknown device: " + uuid(0) + "::9": {uuid(0) + "::9"},
			"unknown device: " + uuid(7):         {uuid(7)},
			"unknown device: " + uuid(0):         {uuid(0)},
		} {
			if _, err := w.kubelet.Allocate(t.Context(), "pod", whole, ids...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v", ids, err)
			}
		}
	})
}

func TestKubeletMayStartLater(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.must(replicas(4), gpus(1))
		clk.Sleep(time.Hour)
		w.startKubelet()
		clk.Sleep(time.Second)
		w.want(whole, 4)
	})
}

func TestRestartedKubeletListsReplicasWithinSecond(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		for range 3 {
			w.kubelet.Stop()
			clk.Sleep(20 * time.Second)
			w.startKubelet()
			clk.Sleep(time.Second)
			w.want(whole, 4)
		}
	})
}

// The kubelet's socket exists shortly before it accepts registrations. The delay does not grow for a kubelet that restarts often.
func TestSlowlyStartingKubeletListsReplicasWithinSecond(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		for range 6 {
			w.kubelet.Stop()
			clk.Sleep(400 * time.Millisecond)
			w.kubelet.Refuse(errors.New("not yet"))
			w.startKubelet()
			clk.Sleep(20 * time.Millisecond)
			w.kubelet.Refuse(nil)
			clk.Sleep(180 * time.Millisecond)
			w.want(whole, 4)
			clk.Sleep(3 * time.Second)
		}
	})
}

func TestRefusedRegistrationIsRetried(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.kubelet.Refuse(errors.New("not now"))
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		clk.Sleep(time.Minute)
		if n := len(w.kubelet.Requests()); n < 10 || n > 20 {
			t.Errorf("%d attempts in a minute", n)
		}
		w.kubelet.Refuse(nil)
		clk.Sleep(5 * time.Second)
		w.want(whole, 4)
	})
}

func TestDroppedStreamIsReestablished(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		w.kubelet.Drop(whole)
		clk.Sleep(time.Second)
		w.want(whole, 4)
	})
}

func TestReloadUsesSameStream(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		for _, n := range []int{4, 10, 3, 7, 2} {
			w.must(replicas(n), gpus(2))
			w.want(whole, 2*n)
		}
		if n := len(w.kubelet.Requests()); n != 1 {
			t.Errorf("registered %d times", n)
		}
		for _, l := range w.kubelet.History(whole) {
			if l.Healthy() < 4 {
				t.Errorf("there was a moment with %d", l.Healthy())
			}
		}
	})
}

func TestHeldReplicasOutliveShrink(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(10), gpus(1))
		var held []string
		for i := range 6 {
			held = append(held, w.admit(fmt.Sprint(i)).IDs...)
		}
		w.must(replicas(3), gpus(1))
		ids := w.kubelet.Current(whole).IDs()
		slices.Sort(held)
		if !slices.Equal(ids, held) {
			t.Errorf("listed %v, held %v", ids, held)
		}
		for i := range 4 {
			w.kubelet.Delete(fmt.Sprint(i))
		}
		clk.Sleep(2 * time.Minute) // Allocations count as held for a while, whatever the kubelet reports.
		w.want(whole, 3)
		w.admit("new")
		if _, err := w.kubelet.Admit(t.Context(), "too many", whole, 1); !errors.Is(err, plugintest.ErrNoRoom) {
			t.Errorf("got %v", err)
		}
	})
}

func TestReplicasStayWhilePodResourcesIsUnavailable(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(10), gpus(1))
		w.kubelet.FailPodResources(errors.New("not served"))
		w.must(replicas(3), gpus(1))
		w.want(whole, 10)
		w.must(replicas(12), gpus(1))
		w.want(whole, 12)
		w.must(replicas(3), gpus(1))
		w.kubelet.FailPodResources(nil)
		clk.Sleep(10 * time.Second)
		w.want(whole, 3)
	})
}

func TestReplicasStayWhileStartingKubeletReportsNoPods(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(10), gpus(1))
		w.kubelet.ForgetPods(true)
		w.must(replicas(3), gpus(1))
		w.want(whole, 10)
		w.kubelet.ForgetPods(false)
		clk.Sleep(10 * time.Second)
		w.want(whole, 3)
	})
}

func TestRestartedAgentKeepsHeldReplicas(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(10), gpus(1))
		high := uuid(0) + "::9"
		if _, err := w.kubelet.Allocate(t.Context(), "pod", whole, high); err != nil {
			t.Fatal(err)
		}
		w.stop()
		w.settle()
		w.want(whole, 0)
		w.startAgent()
		w.must(replicas(2), gpus(1))
		w.want(whole, 2)
		if ids := w.kubelet.Current(whole).IDs(); !slices.Contains(ids, high) {
			t.Errorf("listed %v without %s", ids, high)
		}
	})
}

func TestDeviceChosenBeforeShrinkIsAllocated(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(10), gpus(1))
		w.must(replicas(2), gpus(1))
		late := uuid(0) + "::9"
		if _, err := w.kubelet.Allocate(t.Context(), "pod", whole, late); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if ids := w.kubelet.Current(whole).IDs(); !slices.Contains(ids, late) {
			t.Errorf("listed %v without %s", ids, late)
		}
		w.want(whole, 2)
	})
}

func TestRenameMovesReplicasAsPodsEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(10), gpus(1))
		w.admit("a")
		w.must(renamed(10), gpus(1))
		w.want(whole, 1)
		w.want(shared, 9)
		w.kubelet.Delete("a")
		clk.Sleep(2 * time.Minute)
		w.want(whole, 0)
		w.want(shared, 10)
	})
}

func TestInvalidConfigurationKeepsLastOne(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		for _, bad := range []string{"sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "flags: {plugin: {deviceIDStrategy: name}}", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [5]}]}}"} {
			if w.apply(bad, gpus(1)) == nil {
				t.Errorf("%s was taken", bad)
			}
			w.settle()
			w.want(whole, 4)
		}
		if len(w.errs) != 4 || w.errs[0] != nil || w.errs[3] == nil {
			t.Errorf("told of %v", w.errs)
		}
		if n := len(w.kubelet.History(whole)); n != 1 {
			t.Errorf("the kubelet was told %d times", n)
		}
	})
}

func TestUnhealthyGPUMarksAllItsReplicasUnhealthy(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(4), gpus(2))
		w.m.SetHealth(uuid(1), false)
		w.settle()
		w.want(whole, 4)
		if n := len(w.kubelet.Current(whole).IDs()); n != 8 {
			t.Errorf("%d are listed", n)
		}
		w.must(replicas(5), gpus(2))
		w.want(whole, 5)
		w.m.SetHealth(uuid(1), true)
		w.m.SetHealth(uuid(1), true)
		w.settle()
		w.want(whole, 10)
		if n := len(w.kubelet.History(whole)); n != 4 {
			t.Errorf("told %d times, want 4", n)
		}
	})
}

// other is another plugin for the same resource.
type other struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (other) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func TestManagerStandsBackForOtherPlugin(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		listener, err := w.net.Listen(t.Context(), "/plugins/nvidia-gpu.sock")
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		pluginapi.RegisterDevicePluginServer(g, other{})
		done := make(chan struct{})
		go func() { defer close(done); _ = g.Serve(listener) }()
		w.must(replicas(4), gpus(1))
		clk.Sleep(10 * time.Minute)
		if n := len(w.kubelet.Requests()); n != 0 {
			t.Errorf("registered %d times beside another plugin", n)
		}
		if stood := w.standbyMessages(); len(stood) != 1 || !strings.Contains(stood[0], "another device plugin answers at /plugins/nvidia-gpu.sock") {
			t.Errorf("said %q", stood)
		}
		g.Stop()
		<-done
		clk.Sleep(25 * time.Second)
		w.want(whole, 4)
		if stood := w.standbyMessages(); len(stood) != 2 || stood[1] != "" {
			t.Errorf("said %q", stood)
		}
	})
}

func TestManagerYieldsToPluginThatTakesOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		listener, err := w.net.Listen(t.Context(), "/plugins/nvidia-gpu.sock")
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		pluginapi.RegisterDevicePluginServer(g, other{})
		done := make(chan struct{})
		go func() { defer close(done); _ = g.Serve(listener) }()
		w.kubelet.Drop(whole) // The kubelet uses the other plugin now.
		clk.Sleep(time.Minute)
		if n, stood := len(w.kubelet.Requests()), w.standbyMessages(); n != 1 || len(stood) != 1 {
			t.Errorf("registered %d times, said %q", n, stood)
		}
		g.Stop()
		<-done
		clk.Sleep(15 * time.Second)
		w.want(whole, 4)
	})
}

// nodeHas is how much of the resource the Node reports as allocatable.
type nodeHas struct{ n atomic.Int64 }

func (n *nodeHas) Allocatable(context.Context) (map[string]int64, error) {
	return map[string]int64{whole: n.n.Load()}, nil
}

func TestManagerStandsBackWhenNodeHasResource(t *testing.T) {
	t.Parallel()
	node := &nodeHas{}
	node.n.Store(1)
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		clk.Sleep(time.Minute)
		if n, stood := len(w.kubelet.Requests()), w.standbyMessages(); n != 0 || len(stood) != 1 || !strings.Contains(stood[0], "the Node already has 1 nvidia.com/gpu") {
			t.Errorf("registered %d times, said %q", n, stood)
		}
		node.n.Store(0)
		clk.Sleep(15 * time.Second)
		w.want(whole, 4)
		node.n.Store(4) // From now on, these are its own.
		w.kubelet.Stop()
		w.startKubelet()
		clk.Sleep(time.Second)
		w.want(whole, 4)
	}, func(c *plugin.Config) { c.Allocatable = node })
}

// stuck is a driver that does not answer.
type stuck struct{ release chan struct{} }

func (s stuck) Usage(string) (gpu.Usage, error) {
	<-s.release
	return gpu.Usage{}, nil
}

func TestUnresponsiveGPUDoesNotDelayAllocate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		net := &plugintest.Memory{}
		w := &world{t: t, net: net, kubelet: &plugintest.Kubelet{Network: net, Dir: "/plugins"}}
		w.startAgent(func(c *plugin.Config) { c.Usage = stuck{release} })
		w.startKubelet()
		w.must(replicas(4), gpus(2))
		start := clk.Now()
		w.admit("a")
		if took := clk.Since(start); took > 200*time.Millisecond {
			t.Errorf("took %s", took)
		}
		close(release)
		w.stop()
		w.kubelet.Stop()
	})
}

func TestPodGetsConnectedGPUs(t *testing.T) {
	t.Parallel()
	failing := false
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must("version: v1", gpus(4))
		pair := func(pod string) []string {
			grant, err := w.kubelet.Admit(t.Context(), pod, whole, 2)
			if err != nil {
				t.Fatal(err)
			}
			return grant.IDs
		}
		if a, b := pair("a"), pair("b"); !slices.Equal(a, []string{uuid(0), uuid(2)}) || !slices.Equal(b, []string{uuid(1), uuid(3)}) {
			t.Errorf("two pods have %q and %q", a, b)
		}
		// A pod with one GPU leaves the others together.
		w.kubelet.Delete("a")
		w.kubelet.Delete("b")
		if _, err := w.kubelet.Allocate(t.Context(), "one", whole, uuid(2)); err != nil {
			t.Fatal(err)
		}
		if grant := w.admit("single"); grant.IDs[0] != uuid(0) {
			t.Errorf("a pod with one GPU has %q", grant.IDs)
		}
		failing = true
		w.kubelet.Delete("single")
		w.must("version: v1", gpus(4))
		if ids := pair("c"); !slices.Equal(ids, []string{uuid(0), uuid(1)}) {
			t.Errorf("without their links, a pod has %q", ids)
		}
	}, func(c *plugin.Config) {
		c.Links = func() ([]gpu.Link, error) {
			if failing {
				return nil, errors.New("the driver does not say it")
			}
			return []gpu.Link{
				{A: uuid(0), B: uuid(2), NVLinks: 2, Path: gpu.PathSameCPU}, {A: uuid(1), B: uuid(3), NVLinks: 2, Path: gpu.PathSameCPU}, {A: uuid(0), B: uuid(1), Path: gpu.PathSingleSwitch},
			}, nil
		}
	})
}
