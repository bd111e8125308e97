package node

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"karve.sh/karve/pkg/nodecontract"
)

// forDRA gives the machine a Node that was promised for the backend DRA, or for the device plugin.
func (m *machine) forDRA(backend string) *apiServer {
	m.configure("version: v1")
	api := m.withNode()
	api.annotations[nodecontract.ResourceAnnotation], api.annotations[nodecontract.ReplicasPerGPUAnnotation] = nodecontract.ResourceGPUShared, "10"
	if backend != "" {
		api.annotations[nodecontract.BackendAnnotation] = backend
	}
	return api
}

// acceptDriver does what the kubelet does when it finds the socket of the driver.
func (m *machine) acceptDriver(registry string) {
	m.t.Helper()
	conn, err := grpc.NewClient("unix:"+draSocket(registry), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	m.eventually("the driver is there", func() bool {
		_, err := registration.NewRegistrationClient(conn).NotifyRegistrationStatus(m.t.Context(), &registration.RegistrationStatus{PluginRegistered: true})
		return err == nil
	})
}

// registryFor returns the folder in which the kubelet looks for drivers.
func registryFor(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func draSocket(registry string) string {
	return filepath.Join(registry, nodecontract.DRADriver+"-reg.sock")
}

func draArgs(dir string) []string {
	return []string{"--plugin-registry-dir", dir, "--cdi-spec-dirs", filepath.Join(dir, "cdi")}
}

func TestNodePromisedForDRAHasNoDevicePlugin(t *testing.T) {
	t.Parallel()
	registry := registryFor(t)
	var api *apiServer
	m := start(t, func(m *machine) { api = m.forDRA(nodecontract.BackendDRA) }, draArgs(registry)...)
	m.acceptDriver(registry)
	m.eventually("both GPUs are published", func() bool { return slices.Equal(api.free(), []string{"gpu-a", "gpu-b"}) })
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.eventually("the labels", func() bool { return api.label(nodecontract.GPUReplicasLabel) == "10" })

	m.library.Report("GPU-a", 79)
	m.eventually("a GPU is out of service", func() bool { return slices.Equal(api.free(), []string{"gpu-b"}) })
	api.annotate(nodecontract.GPUCordonAnnotation, "1")
	m.eventually("the other one is cordoned", func() bool { return len(api.free()) == 0 })
	api.annotate(nodecontract.GPUCordonAnnotation, "")
	m.eventually("it takes pods again", func() bool { return slices.Equal(api.free(), []string{"gpu-b"}) })

	api.change(func() { api.slices = []string{"n-gpu.nvidia.com-x7k2p"} })
	m.untilCondition(api, nodecontract.SharingCondition, "False StandingBack", "nvidia.com/gpu.shared: the DRA driver gpu.nvidia.com")
	m.eventually("nothing is published", func() bool { return len(api.free()) == 0 })
	api.change(func() { api.slices = nil })
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.eventually("it is published again", func() bool { return slices.Equal(api.free(), []string{"gpu-b"}) })
	if got := m.kubelet.Requests(); len(got) > 0 {
		t.Errorf("it has registered %v as a device plugin", got)
	}
}

// The two backends do not know what the other one has given to pods.
func TestNodeIsNotConvertedWhilePodsHoldGPUs(t *testing.T) {
	t.Parallel()
	registry := registryFor(t)
	var api *apiServer
	m := start(t, func(m *machine) { api = m.forDRA("") }, draArgs(registry)...)
	m.eventually("20 replicas", func() bool { return m.kubelet.Allocatable(nodecontract.ResourceGPUShared) == 20 })
	if _, err := os.Stat(draSocket(registry)); err == nil {
		t.Error("a node of the device plugin has the socket of a DRA driver")
	}
	if _, err := m.kubelet.Admit(t.Context(), "pod", nodecontract.ResourceGPUShared, 1); err != nil {
		t.Fatal(err)
	}
	api.annotate(nodecontract.BackendAnnotation, nodecontract.BackendDRA)
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", "default/pod holds GPU-", "replace the node")
	if got := m.kubelet.Allocatable(nodecontract.ResourceGPUShared); got != 20 || len(api.free()) > 0 {
		t.Errorf("%d replicas, and %v are published", got, api.free())
	}
}

// TestPromiseThatComesLateStartsDriver checks an agent that starts before Karpenter has synced the annotations to the Node.
func TestPromiseThatComesLateStartsDriver(t *testing.T) {
	t.Parallel()
	registry := registryFor(t)
	var api *apiServer
	m := start(t, func(m *machine) { api = m.forDRA("") }, draArgs(registry)...)
	m.eventually("20 replicas", func() bool { return m.kubelet.Allocatable(nodecontract.ResourceGPUShared) == 20 })
	api.annotate(nodecontract.BackendAnnotation, nodecontract.BackendDRA)
	m.acceptDriver(registry)
	m.eventually("both GPUs are published", func() bool { return slices.Equal(api.free(), []string{"gpu-a", "gpu-b"}) })
	m.eventually("the device plugin has none", func() bool { return m.kubelet.Allocatable(nodecontract.ResourceGPUShared) == 0 })
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
}

func TestUnknownBackendIsRefused(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) { api = m.forDRA("CDI") })
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", `"CDI"`, "this agent knows DRA and NVIDIADRA")
}

// TestNodePromisedForNVIDIAsDriverIsLeftToIt checks that the agent gives nothing away, and does not complain of the driver that was wanted.
func TestNodePromisedForNVIDIAsDriverIsLeftToIt(t *testing.T) {
	t.Parallel()
	registry := registryFor(t)
	var api *apiServer
	m := start(t, func(m *machine) {
		api = m.forDRA(nodecontract.BackendNVIDIADRA)
		api.annotations[nodecontract.ResourceAnnotation], api.annotations[nodecontract.ReplicasPerGPUAnnotation] = nodecontract.ResourceGPU, "4"
	}, draArgs(registry)...)
	m.untilCondition(api, nodecontract.SharingCondition, "False NVIDIADRADriverNotFound", "has no ResourceSlice for this node")
	api.change(func() { api.slices = []string{"n-gpu.nvidia.com-x7k2p"} })
	m.untilCondition(api, nodecontract.SharingCondition, "True ServedByNVIDIADRADriver", "n-gpu.nvidia.com-x7k2p")
	m.untilCondition(api, hardware, "True GPUsHealthy")
	m.eventually("the labels", func() bool { return api.label(nodecontract.GPUReplicasLabel) == "4" })
	m.eventually("the agent is ready", func() bool { code, _ := m.get("/readyz"); return code == http.StatusOK })
	if got := m.kubelet.Requests(); len(got) > 0 || len(api.free()) > 0 || api.count(nodecontract.ReasonStandingBack, "") > 0 {
		t.Errorf("it has registered %v, publishes %v, and has %d events of standing back", got, api.free(), api.count(nodecontract.ReasonStandingBack, ""))
	}
	if _, err := os.Stat(draSocket(registry)); err == nil {
		t.Error("it has the socket of a DRA driver")
	}
	api.change(func() { api.slices = nil })
	m.untilCondition(api, nodecontract.SharingCondition, "False NVIDIADRADriverNotFound")
}

// TestNVIDIAsDriverPromisedLateIsNoReasonToStandBack checks an agent that has stood back from the driver before Karpenter has synced the annotations to the Node.
func TestNVIDIAsDriverPromisedLateIsNoReasonToStandBack(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		api = m.forDRA("")
		api.annotations[nodecontract.ResourceAnnotation] = nodecontract.ResourceGPU
		api.slices = []string{"n-gpu.nvidia.com-x7k2p"}
	})
	m.untilCondition(api, nodecontract.SharingCondition, "False StandingBack", "use backend NVIDIADRA")
	api.annotate(nodecontract.BackendAnnotation, nodecontract.BackendNVIDIADRA)
	m.untilCondition(api, nodecontract.SharingCondition, "True ServedByNVIDIADRADriver")
	api.annotate(nodecontract.BackendAnnotation, "")
	m.untilCondition(api, nodecontract.SharingCondition, "False StandingBack", "use backend NVIDIADRA")
	if n := m.kubelet.Allocatable(nodecontract.ResourceGPU); n != 0 || api.count("InCharge", "") > 0 {
		t.Errorf("%d replicas, and %d events of being in charge", n, api.count("InCharge", ""))
	}
}
