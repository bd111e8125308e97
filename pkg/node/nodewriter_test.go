package node

import (
	"context"
	"maps"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

const countLabel = "nvidia.com/gpu.count"

func TestRemovedLabelsAreRestoredAtMostOncePerMinute(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
	})
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.eventually("labels", func() bool { return api.label(countLabel) == "2" })

	// First a feature discovery prunes labels and conditions. Later, another writer keeps overwriting a label.
	api.change(func() {
		api.patches = 0
		clear(api.labels)
		delete(api.conditions, nodecontract.SharingCondition)
	})
	m.eventually("labels again", func() bool { return api.label(countLabel) == "2" })
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	for range 30 {
		api.change(func() { api.labels[countLabel] = "7" })
		time.Sleep(100 * time.Millisecond)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	if api.patches != 1 {
		t.Errorf("%d patches while another writes the same label", api.patches)
	}
}

func TestRecreatedNodeGetsLabelsAndConditionsAgain(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
	})
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.untilCondition(api, hardware, "True GPUsHealthy")
	m.eventually("labels", func() bool { return api.label(countLabel) == "2" })
	var before map[string]string
	api.change(func() {
		before = maps.Clone(api.labels)
		clear(api.labels)
		clear(api.conditions)
	})
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.untilCondition(api, hardware, "True GPUsHealthy")
	m.eventually("all labels", func() bool {
		api.mu.Lock()
		defer api.mu.Unlock()
		return maps.Equal(api.labels, before)
	})
	if api.conditions[nodecontract.SharingCondition]["lastTransitionTime"] == "" {
		t.Error("the condition has no time")
	}
}

// silent is a device plugin that answers but lists no devices.
type silent struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (silent) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func TestAgentWritesNoLabelsWhileStandingBack(t *testing.T) {
	t.Parallel()
	var api *apiServer
	end := func() {}
	m := start(t, func(m *machine) {
		m.configure("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 10}]}}")
		api = m.withNode()
		listener, err := plugin.Unix{}.Listen(t.Context(), m.dir+"/nvidia-gpu.sock")
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		pluginapi.RegisterDevicePluginServer(g, silent{})
		done := make(chan struct{})
		go func() { defer close(done); _ = g.Serve(listener) }()
		end = func() {
			g.Stop()
			<-done
		}
		t.Cleanup(end)
	})
	m.untilCondition(api, nodecontract.SharingCondition, "False StandingBack", "nvidia.com/gpu.shared: another device plugin answers at "+m.dir+"/nvidia-gpu.sock")
	m.eventually("the event", func() bool {
		return api.count("StandingBack", "nvidia.com/gpu.shared is not served: another device plugin") == 1
	})
	m.untilCondition(api, hardware, "True GPUsHealthy")
	if code, body := m.get("/readyz"); code != http.StatusOK {
		t.Errorf("an agent that stands back is not ready: %s", body)
	}
	api.change(func() {})
	time.Sleep(2 * restoreAfter)
	if n := api.label(countLabel); n != "" || len(m.kubelet.Requests()) != 0 {
		t.Errorf("the count is %q, and there are %d registrations", n, len(m.kubelet.Requests()))
	}
	end()
	m.later("20 replicas", func() bool { return m.kubelet.Allocatable("nvidia.com/gpu.shared") == 20 })
	m.eventually("the labels", func() bool { return api.label(countLabel) == "2" })
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.eventually("the event", func() bool { return api.count("InCharge", "nvidia.com/gpu.shared") == 1 })
}

func TestAgentYieldsGPUsToDRADriver(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		api.slices = []string{"n-gpu.nvidia.com-x7k2p"}
	})
	m.untilCondition(api, nodecontract.SharingCondition, "False StandingBack", "the DRA driver gpu.nvidia.com gives the node's GPUs away (ResourceSlice n-gpu.nvidia.com-x7k2p); take it off the node")
	m.eventually("nothing is offered", m.allocatable(0))
	api.change(func() { api.slices = nil })
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	api.change(func() { api.slices = []string{"n-gpu.nvidia.com-abcde"} })
	m.untilCondition(api, nodecontract.SharingCondition, "False StandingBack", "abcde")
	m.eventually("nothing is offered", m.allocatable(0))
	m.eventually("an event each time", func() bool { return api.count("StandingBack", "") == 2 && api.count("InCharge", "") == 1 })
}
