package node

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

// daemons is a stand-in for the supervisor of MPS daemons.
type daemons struct {
	m   *machine
	dir string
}

func (d daemons) say(problems map[string]string) {
	d.m.t.Helper()
	wanted, err := mps.ReadWanted(d.dir)
	if err != nil {
		d.m.t.Fatal(err)
	}
	status := mps.Status{AsOf: time.Now()}
	for _, l := range wanted.GPUs {
		status.Daemons = append(status.Daemons, mps.Daemon{Limits: l, Answers: problems[l.UUID] == "", Problem: problems[l.UUID], Starts: 1})
	}
	if err := status.Write(d.dir); err != nil {
		d.m.t.Fatal(err)
	}
}

func (d daemons) wanted() int {
	wanted, err := mps.ReadWanted(d.dir)
	if err != nil {
		d.m.t.Error(err)
	}
	return len(wanted.GPUs)
}

const sharedWithMPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}"

// startWithMPS starts a machine with two T4s that are to be shared with MPS.
func startWithMPS(t *testing.T) (*machine, *apiServer, daemons) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mps")
	var api *apiServer
	m := start(t, func(m *machine) {
		m.library.SetDevices(t4s(gpu.ComputeDefault)...)
		m.configure(sharedWithMPS)
		api = m.withNode()
	}, "--mps-dir", dir)
	return m, api, daemons{m, dir}
}

func t4s(mode gpu.ComputeMode) []gpu.Device {
	return []gpu.Device{
		{UUID: "GPU-a", Index: 0, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, NUMANode: -1, ComputeMode: mode},
		{UUID: "GPU-b", Index: 1, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, NUMANode: -1, ComputeMode: mode},
	}
}

// sharingReason returns the reason of the Node's sharing condition.
func (s *apiServer) sharingReason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conditions[nodecontract.SharingCondition]["reason"]
}

func (s *apiServer) told(reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e["reason"] == reason {
			return true
		}
	}
	return false
}

func TestReplicasWaitForMPSDaemons(t *testing.T) {
	t.Parallel()
	m, api, d := startWithMPS(t)
	m.eventually("the agent wants two daemons", func() bool { return d.wanted() == 2 })
	m.eventually("the condition says what is missing", func() bool { return api.sharingReason() == nodecontract.ReasonMPSDaemonDown })
	if !m.allocatable(0)() {
		t.Error("replicas are there before the daemons")
	}
	d.say(nil)
	m.eventually("20 replicas", m.allocatable(20))
	m.eventually("the condition is True", func() bool { return api.sharingReason() == nodecontract.ReasonApplied })
	if strategy, capable := api.label("nvidia.com/gpu.sharing-strategy"), api.label("nvidia.com/mps.capable"); strategy != "mps" || capable != "true" {
		t.Errorf("the labels say %q and %q", strategy, capable)
	}

	comes := nodeapi.Pod{}
	comes.Metadata.Namespace, comes.Metadata.Name = "default", "small"
	comes.Metadata.Annotations = map[string]string{nodecontract.GPUMemoryAnnotation: "1Gi"}
	comes.Spec.Containers = []nodeapi.Container{{Name: "main"}}
	comes.Spec.Containers[0].Resources.Limits = map[string]string{resource: "1"}
	api.change(func() { api.pods = []nodeapi.Pod{comes} })
	for name, want := range map[string]string{"small": "0=1024M", "large": ""} {
		if name == "large" {
			api.change(func() { api.pods[0].Metadata.Annotations[nodecontract.GPUMemoryAnnotation] = "8Gi" })
		} else {
			api.change(func() { api.pods[0].Metadata.Annotations[nodecontract.GPUMemoryAnnotation] = "1Gi" })
		}
		grant, err := m.kubelet.Admit(t.Context(), name, resource, 1)
		if err != nil {
			t.Fatal(err)
		}
		envs := grant.Response.GetEnvs()
		if envs["CUDA_MPS_PIPE_DIRECTORY"] != "/run/karve/mps/pipe" || envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != want {
			t.Errorf("%s: %v", name, envs)
		}
	}

	d.say(map[string]string{"GPU-a": "its MPS daemon has ended (signal: killed)"})
	m.eventually("the replicas of one GPU are out", m.allocatable(10))
	m.eventually("an event and the condition say so", func() bool {
		return api.told(nodecontract.ReasonMPSDaemonDown) && api.sharingReason() == nodecontract.ReasonMPSDaemonDown
	})
	d.say(nil)
	m.eventually("they are back", m.allocatable(20))
	m.eventually("the condition is True again", func() bool { return api.sharingReason() == nodecontract.ReasonApplied && api.told("MPSDaemonBack") })
}

func TestStrategyChangesWhenNobodyHoldsGPU(t *testing.T) {
	t.Parallel()
	m, api, d := startWithMPS(t)
	m.eventually("the agent wants two daemons", func() bool { return d.wanted() == 2 })
	d.say(nil)
	m.eventually("20 replicas", m.allocatable(20))
	if _, err := m.kubelet.Allocate(t.Context(), "pod", resource, "GPU-b::0"); err != nil {
		t.Fatal(err)
	}
	m.configure(replicas(4))
	m.eventually("the change is refused", func() bool { return m.log.has("default/pod holds GPU-b") })
	d.say(nil)
	if d.wanted() != 2 || !m.allocatable(20)() {
		t.Error("the change happened")
	}
	m.kubelet.Delete("pod")
	m.library.SetDevices(t4s(gpu.ComputeExclusiveProcess)...) // The supervisor has not reset it yet.
	m.later("no daemon is wanted", func() bool { return d.wanted() == 0 })
	m.later("the mode is wrong", func() bool { return api.sharingReason() == nodecontract.ReasonComputeModeWrong })
	if !m.allocatable(0)() {
		t.Error("pods may come while the strategy changes")
	}
	m.library.SetDevices(t4s(gpu.ComputeDefault)...)
	m.later("8 replicas", m.allocatable(8))
}

func TestStatedMemoryIsThatOfThePodThatComes(t *testing.T) {
	t.Parallel()
	pod := func(name, phase, memory, asks string) nodeapi.Pod {
		var p nodeapi.Pod
		p.Metadata.Namespace, p.Metadata.Name, p.Status.Phase = "team", name, phase
		p.Metadata.Annotations = map[string]string{nodecontract.GPUMemoryAnnotation: memory}
		c := nodeapi.Container{Name: "main"}
		c.Resources.Limits = map[string]string{resource: asks}
		p.Spec.Containers = []nodeapi.Container{c}
		return p
	}
	holds := []plugin.Holder{{Pod: "team/runs", Container: "main", Devices: []string{"GPU-a::0"}}}
	threads := func(p nodeapi.Pod, percent string) nodeapi.Pod {
		p.Metadata.Annotations = maps.Clone(p.Metadata.Annotations)
		p.Metadata.Annotations[nodecontract.GPUThreadsAnnotation] = percent
		return p
	}
	for name, c := range map[string]struct {
		pods []nodeapi.Pod
		want int64
	}{
		"the only one":                         {[]nodeapi.Pod{pod("a", "Pending", "4Gi", "1")}, 4096},
		"one that runs does not count":         {[]nodeapi.Pod{pod("runs", "Running", "8Gi", "1"), pod("a", "Pending", "4Gi", "1")}, 4096},
		"one that has ended does not count":    {[]nodeapi.Pod{pod("old", "Succeeded", "8Gi", "1"), pod("a", "Pending", "4Gi", "1")}, 4096},
		"one that asks for more does not":      {[]nodeapi.Pod{pod("big", "Pending", "8Gi", "2"), pod("a", "Pending", "4Gi", "1")}, 4096},
		"the largest of several":               {[]nodeapi.Pod{pod("a", "Pending", "4Gi", "1"), pod("b", "Pending", "6Gi", "1"), pod("c", "Pending", "5Gi", "1")}, 6144},
		"none if one of several states none":   {[]nodeapi.Pod{pod("a", "Pending", "4Gi", "1"), pod("b", "Pending", "", "1")}, 0},
		"none if what one states is no amount": {[]nodeapi.Pod{pod("a", "Pending", "much", "1")}, 0},
		"no pod":                               {nil, 0},
	} {
		if got := stated(c.pods, holds, resource, 1).MemoryMiB; got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got, c.want)
		}
	}
	a, b := pod("a", "Pending", "4Gi", "1"), pod("b", "Pending", "", "1")
	for name, c := range map[string]struct {
		pods []nodeapi.Pod
		want plugin.Stated
	}{
		"threads":                        {[]nodeapi.Pod{threads(a, "5")}, plugin.Stated{MemoryMiB: 4096, ThreadPercent: 5}},
		"the most threads of several":    {[]nodeapi.Pod{threads(a, "5"), threads(b, "20")}, plugin.Stated{ThreadPercent: 20}},
		"threads that are no percentage": {[]nodeapi.Pod{threads(a, "500")}, plugin.Stated{MemoryMiB: 4096}},
	} {
		if got := stated(c.pods, holds, resource, 1); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	for text, want := range map[string]int64{"4Gi": 4096, "1.5Gi": 1536, "512Mi": 512, "2G": 1908, "1073741824": 1024, "1": 0, "8000": 0, "1048577": 2, "0": 0, "-1Gi": 0, "": 0, "Gi": 0, "1e30Ti": 0, "NaN": 0} {
		if got := memoryMiB(text); got != want {
			t.Errorf("%q is %d MiB, want %d", text, got, want)
		}
	}
}

func TestArgumentsOfMPSDaemons(t *testing.T) {
	t.Parallel()
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"MPS_DIR": "/elsewhere", "MPS_SHM_MIB": "64", "MPS_KEEP_COMPUTE_MODE": "true", "LOG_LEVEL": "debug"}[name]
		return v, ok
	}
	nothing := func(string) (string, bool) { return "", false }
	if o, err := ParseMPS(nil, nothing, os.Stderr); o.dir != mps.Dir || o.shmMiB != 1024 || o.keepMode || err != nil {
		t.Errorf("without arguments: %+v, %v", o, err)
	}
	if o, err := ParseMPS(nil, env, os.Stderr); o.dir != "/elsewhere" || o.shmMiB != 64 || !o.keepMode || o.Level != slog.LevelDebug || err != nil {
		t.Errorf("by environment: %+v, %v", o, err)
	}
	if o, err := ParseMPS([]string{"--mps-dir=/here", "--shm-mib=0", "--keep-compute-mode=false"}, env, os.Stderr); o.dir != "/here" || o.shmMiB != 0 || o.keepMode || err != nil {
		t.Errorf("by flag: %+v, %v", o, err)
	}
	for _, bad := range [][]string{{"x"}, {"--log-level=loud"}, {"--shm-mib=1Gi"}, {"--shm-mib=-1"}, {"--shm-mib=1073741824"}, {"--keep-compute-mode=perhaps"}} {
		if _, err := ParseMPS(bad, nothing, &strings.Builder{}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
