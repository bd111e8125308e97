package plugin_test

import (
	"context"
	"errors"
	"net"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/plugin"
)

// stranger is another device plugin.
type stranger struct {
	pluginapi.UnimplementedDevicePluginServer
	ids []string
}

func (stranger) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (s stranger) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	r := &pluginapi.ListAndWatchResponse{}
	for _, id := range s.ids {
		r.Devices = append(r.Devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := stream.Send(r); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// stranger starts another plugin and returns a function that stops it.
func (w *world) stranger(socket, resource string, ids ...string) (end func()) {
	w.t.Helper()
	at := path.Join(w.kubelet.Dir, socket)
	listener, err := w.net.Listen(w.t.Context(), at)
	if err != nil {
		w.t.Fatal(err)
	}
	g := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(g, stranger{ids: ids})
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.net.Dial(ctx, w.kubelet.Socket()) }))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: socket, ResourceName: resource}
	if _, err := pluginapi.NewRegistrationClient(conn).Register(w.t.Context(), request); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	return func() {
		g.Stop()
		<-done
	}
}

// hold gives a replica to a pod.
func (w *world) hold(pod string) {
	w.t.Helper()
	if _, err := w.kubelet.Admit(w.t.Context(), pod, shared, 1); err != nil {
		w.t.Error(err)
	}
}

// aside returns how often the manager stood back with this reason, and how often it came back.
func (w *world) aside(words string) (went, came int) {
	for _, why := range w.standbyMessages() {
		switch {
		case why == "":
			came++
		case strings.Contains(why, words):
			went++
		default:
			w.t.Errorf("stood back because %s", why)
		}
	}
	return went, came
}

func (w *world) stepped(words string, went, came int) {
	w.t.Helper()
	if a, b := w.aside(words); a != went || b != came {
		w.t.Errorf("stood back %d times for %q and came back %d times, want %d and %d", a, words, b, went, came)
	}
}

func TestPluginOnSameGPUsIsFoundWhateverItsResource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ socket, resource, id, words string }{
		"NVIDIA's":                                         {"nvidia-gpu.sock", whole, uuid(0), "another device plugin answers at /plugins/nvidia-gpu.sock"},
		"NVIDIA's with a rename":                           {"nvidia-small.sock", "nvidia.com/small", uuid(0) + "::0", "another device plugin answers at /plugins/nvidia-small.sock"},
		"NVIDIA's for partitions":                          {"nvidia-mig-1g.5gb.sock", "nvidia.com/mig-1g.5gb", "MIG-1", "another device plugin answers at /plugins/nvidia-mig-1g.5gb.sock"},
		"of another vendor":                                {"vgpu.sock", "example.com/vgpu", uuid(0) + "::7", "another device plugin serves these GPUs as example.com/vgpu"},
		"of another vendor with its own socket":            {"gpu.sock", whole, uuid(0), "another device plugin serves these GPUs as nvidia.com/gpu;"},
		"partitions of another vendor with its own socket": {"mig.sock", "nvidia.com/mig-1g.5gb", "MIG-1", "another device plugin serves these GPUs as nvidia.com/mig-1g.5gb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.startKubelet()
				end := w.stranger(c.socket, c.resource, c.id)
				w.must(renamed(4), gpus(1))
				clk.Sleep(10 * time.Minute)
				w.want(shared, 0)
				if slices.ContainsFunc(w.kubelet.Requests(), func(r *pluginapi.RegisterRequest) bool { return r.GetResourceName() == shared }) {
					w.t.Error("registered beside another plugin")
				}
				w.stepped(c.words, 1, 0)
				end()
				clk.Sleep(25 * time.Second)
				w.want(shared, 4)
				w.stepped(c.words, 1, 1)

				// The other plugin arrives while pods run. They keep what they hold, and no new pods are admitted.
				w.hold("pod")
				end = w.stranger(c.socket, c.resource, c.id)
				clk.Sleep(25 * time.Second)
				w.want(shared, 1)
				w.stepped(c.words, 2, 1)
				w.kubelet.Stop()
				w.startKubelet()
				end()
				end = w.stranger(c.socket, c.resource, c.id)
				clk.Sleep(time.Minute)
				w.want(shared, 1)
				w.kubelet.Delete("pod")
				clk.Sleep(2 * time.Minute)
				w.want(shared, 0)
				end()
				clk.Sleep(25 * time.Second)
				w.want(shared, 4)
			})
		})
	}
}

func TestPluginsForOtherDevicesAreIgnored(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		defer w.stranger("nvidia.com_hostdev.sock", "nvidia.com/hostdev", "0000:00:1f.0")()
		defer w.stranger("efa.sock", "vpc.amazonaws.com/efa", "rdmap0s31")()
		defer w.stranger("fpga.sock", "example.com/fpga", "MIG-1", "GPU-of-another-machine")()
		w.must(renamed(4), gpus(1))
		w.want(shared, 4)
		clk.Sleep(10 * time.Minute)
		w.want(shared, 4)
		w.stepped("", 0, 0)
	})
}

func TestOwnFormerResourceIsIgnored(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		for range 5 {
			w.must(replicas(4), gpus(2))
			clk.Sleep(7 * time.Second)
			w.must(renamed(4), gpus(2))
			clk.Sleep(7 * time.Second)
		}
		w.want(shared, 8)
		w.stop()
		w.settle()
		w.startAgent()
		w.must(replicas(4), gpus(2))
		w.want(whole, 8)
		w.stepped("", 0, 0)
	})
}

func TestManagerWaitsForRestartingPlugin(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		end := w.stranger("nvidia-gpu.sock", whole, uuid(0))
		w.must(renamed(4), gpus(1))
		for range 10 {
			end()
			clk.Sleep(9 * time.Second)
			end = w.stranger("nvidia-gpu.sock", whole, uuid(0))
			clk.Sleep(31 * time.Second)
		}
		w.want(shared, 0)
		w.stepped("nvidia-gpu.sock", 1, 0)
		end()
	})
}

func TestClaimStopsServingGPUs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		const why = "the DRA driver has them"
		w.startKubelet()
		w.m.Claim(w.t.Context(), why)
		w.must(renamed(4), gpus(1))
		clk.Sleep(time.Minute)
		w.want(shared, 0)
		w.stepped(why, 1, 0)
		w.m.Claim(w.t.Context(), "")
		w.settle()
		w.want(shared, 4)
		w.hold("pod")
		w.m.Claim(w.t.Context(), why)
		w.settle()
		w.want(shared, 1)
		w.m.Claim(w.t.Context(), "")
		w.settle()
		w.want(shared, 4)
		w.stepped(why, 2, 2)
	})
}

// nodeGives is everything that the Node reports as allocatable.
type nodeGives map[string]int64

func (n nodeGives) Allocatable(context.Context) (map[string]int64, error) {
	if n == nil {
		return nil, errors.New("no API server")
	}
	return n, nil
}

func TestNodeAllocatableCountsWhenSocketsDoNotAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		node nodeGives
		left string // a socket on which nobody answers
		want int
	}{
		"another name":                  {nodeGives{"nvidia.com/mig-1g.5gb": 7, "cpu": 4}, "", 0},
		"its own resource from before":  {nodeGives{whole: 4}, "nvidia-gpu.sock", 4},
		"only foreign resources":        {nodeGives{whole: 0, "vpc.amazonaws.com/efa": 4}, "", 4},
		"the API server is unreachable": {nil, "", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.startKubelet()
				if c.left != "" {
					l, err := w.net.Listen(w.t.Context(), "/plugins/"+c.left)
					if err != nil {
						w.t.Fatal(err)
					}
					_ = l.Close()
				}
				w.must(renamed(4), gpus(1))
				clk.Sleep(time.Minute)
				w.want(shared, c.want)
			}, func(config *plugin.Config) { config.Allocatable, config.InUse = c.node, nil })
		})
	}
}
