package plugin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/node/sharing"
)

// onSockets starts an agent and a kubelet on real sockets.
func onSockets(t testing.TB, n int) (*plugintest.Kubelet, *plugin.Manager) {
	t.Helper()
	dir, err := os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	k := &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := plugin.New(plugin.Config{KubeletSocket: k.Socket(), InUse: plugin.PodResources{Socket: k.PodResourcesSocket()}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		k.Stop()
		_ = os.RemoveAll(dir)
	})
	apply(t, m, n, 10)
	return k, m
}

func apply(t testing.TB, m *plugin.Manager, n, perGPU int) {
	t.Helper()
	c, err := sharing.FromPromise(sharing.Promise{Resource: whole, Replicas: perGPU})
	if err == nil {
		err = m.Apply(t.Context(), c, gpus(n))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// patience allows for slow machines.
const patience = 5 * time.Second

func within(t testing.TB, what string, f func() bool) time.Duration {
	t.Helper()
	start := clk.Now()
	for !f() {
		if clk.Since(start) > patience {
			t.Fatalf("not within %s: %s", patience, what)
		}
		clk.Sleep(200 * time.Microsecond)
	}
	return clk.Since(start)
}

func TestManagerOnRealSockets(t *testing.T) {
	t.Parallel()
	k, m := onSockets(t, 4)
	t.Log("listed after", within(t, "the first list", func() bool { return k.Allocatable(whole) == 40 }))
	if _, err := k.Admit(t.Context(), "a", whole, 2); err != nil {
		t.Fatal(err)
	}
	apply(t, m, 4, 3)
	t.Log("reloaded after", within(t, "the reload", func() bool { return k.Allocatable(whole) == 12 }))
	for range 3 {
		k.Stop()
		if err := k.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Log("back after", within(t, "registering anew", func() bool { return k.Allocatable(whole) == 12 }))
	}
}

func TestRemovedSocketDoesNotEndWatch(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	created := plugin.Unix{}.Created(t.Context(), filepath.Join(dir, "kubelet.sock"))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.WriteFile(filepath.Join(dir, "kubelet.sock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		select {
		case <-created:
		case <-clk.After(5 * time.Second):
			t.Fatal("not told of the socket")
		}
		if err := os.Remove(filepath.Join(dir, "kubelet.sock")); err != nil {
			t.Fatal(err)
		}
		clk.Sleep(300 * time.Millisecond)
	}
}

func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

func BenchmarkAllocate480(b *testing.B) {
	k, _ := onSockets(b, 48)
	within(b, "the first list", func() bool { return k.Allocatable(whole) == 480 })
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.Dir, k.Requests()[0].GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := pluginapi.NewDevicePluginClient(conn)
	free := k.Current(whole).IDs()
	var took []time.Duration
	i := 0
	for b.Loop() {
		start := clk.Now()
		preferred, err := client.GetPreferredAllocation(b.Context(), &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: 1}},
		})
		if err == nil {
			_, err = client.Allocate(b.Context(), &pluginapi.AllocateRequest{
				ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: preferred.GetContainerResponses()[0].GetDeviceIDs()}},
			})
		}
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, clk.Since(start))
		i++
	}
	b.ReportMetric(float64(p99(took).Microseconds()), "p99-us")
}

func BenchmarkStartToListed(b *testing.B) {
	for b.Loop() {
		k, _ := onSockets(b, 4)
		within(b, "the first list", func() bool { return k.Allocatable(whole) == 40 })
	}
}

func BenchmarkReload480(b *testing.B) {
	k, m := onSockets(b, 48)
	within(b, "the first list", func() bool { return k.Allocatable(whole) == 480 })
	for i := 0; b.Loop(); i++ {
		n := 9 + i%2
		apply(b, m, 48, n)
		within(b, fmt.Sprint(n), func() bool { return k.Allocatable(whole) == 48*n })
	}
}

// BenchmarkAllocateOnly480 omits GetPreferredAllocation, which the kubelet calls only if there is a choice.
func BenchmarkAllocateOnly480(b *testing.B) {
	k, _ := onSockets(b, 48)
	within(b, "the first list", func() bool { return k.Allocatable(whole) == 480 })
	free := k.Current(whole).IDs()
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		start := clk.Now()
		if _, err := k.Allocate(b.Context(), "pod", whole, free[i%len(free)]); err != nil {
			b.Fatal(err)
		}
		took = append(took, clk.Since(start))
	}
	b.ReportMetric(float64(p99(took).Microseconds()), "p99-us")
}
