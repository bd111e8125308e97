package kubelet_test

import (
	"context"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// choice is a request for GPUs of a container, and what a plugin prefers.
type choice struct {
	available, must []string
	size            int
}

// preferences asks the plugin that serves the GPUs of the node, as the kubelet does.
func (w *world) preferences(choices []choice) [][]string {
	w.t.Helper()
	// The agents' sockets have names of their own, and the kubelet keeps no other.
	sockets, err := filepath.Glob(filepath.Join(w.node.Dir(), "kubelet", "device-plugins", "karve-gpu-*.sock"))
	w.must(err)
	sockets = append(sockets, filepath.Join(w.node.Dir(), "kubelet", "device-plugins", "nvidia-gpu.sock"))
	connection, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", sockets[0])
		}))
	w.must(err)
	defer connection.Close()
	client := pluginapi.NewDevicePluginClient(connection)
	var all [][]string
	for _, c := range choices {
		response, err := client.GetPreferredAllocation(w.t.Context(), &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: c.available, MustIncludeDeviceIDs: c.must, AllocationSize: int32(c.size)},
		}})
		w.must(err)
		all = append(all, response.GetContainerResponses()[0].GetDeviceIDs())
	}
	return all
}

// TestGPUsAreConnectedAtLeastAsWellAsNVIDIAs compares the agent with NVIDIA's own plugin on the same machines.
func TestGPUsAreConnectedAtLeastAsWellAsNVIDIAs(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	nvidia, karve := build(t, gpus.NVIDIA), build(t, gpus.Karve)
	for name, machine := range map[string]nvmltest.State{"V100": nvmltest.V100(8), "A100": nvmltest.A100(8)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, machine)
			var choices []choice
			random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // A repeatable test.
			for range 100 {
				var c choice
				for _, i := range random.Perm(8)[:3+random.IntN(6)] {
					c.available = append(c.available, machine.Devices[i].UUID)
				}
				c.size = 2 + random.IntN(len(c.available)-1)
				c.must = c.available[:random.IntN(c.size)]
				choices = append(choices, c)
			}
			process := w.start(nvidia)
			w.allocatable(8)
			theirs := w.preferences(choices)
			nvidia.Stop(process)
			process = w.start(karve)
			w.allocatable(8)
			ours := w.preferences(choices)
			process.Stop(5 * time.Second)

			better, other := 0, 0
			for i, c := range choices {
				if len(ours[i]) != c.size || slices.ContainsFunc(c.must, func(m string) bool { return !slices.Contains(ours[i], m) }) {
					t.Errorf("of %q with %q, %d: %q", c.available, c.must, c.size, ours[i])
				}
				switch our, their := scoreOf(machine, ours[i]), scoreOf(machine, theirs[i]); {
				case our < their:
					t.Errorf("of %q with %q, %d: %q with a score of %d, and NVIDIA's plugin has %q with %d", c.available, c.must, c.size, ours[i], our, theirs[i], their)
				case our > their:
					better++
				case !slices.Equal(slices.Sorted(slices.Values(ours[i])), slices.Sorted(slices.Values(theirs[i]))):
					other++
				}
			}
			t.Logf("of %d choices, %d are better, and %d are others that are as good", len(choices), better, other)
		})
	}
}

// scoreOf returns how well GPUs are connected.
func scoreOf(machine nvmltest.State, uuids []string) int {
	sum := 0
	for _, l := range machine.Links {
		if slices.Contains(uuids, machine.Devices[l.A].UUID) && slices.Contains(uuids, machine.Devices[l.B].UUID) {
			sum += gpu.Link{NVLinks: l.NVLinks, Path: l.Path}.Score()
		}
	}
	return sum
}
