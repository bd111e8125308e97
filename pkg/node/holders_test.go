package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

func TestAReportHasTheHoldersOfEachGPU(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 999, time.UTC)
	devices := []gpu.Device{{UUID: "GPU-a", Product: "Tesla T4", MemoryMiB: 15360}, {UUID: "GPU-b", Index: 1, Product: "Tesla T4", MemoryMiB: 15360}, {UUID: "GPU-c", Index: 2}}
	shares := map[string]plugin.Share{"GPU-a": {Total: 10}, "GPU-b": {Total: 10, Unhealthy: true, Cordoned: true}, "GPU-c": {Cordoned: true}}
	got := holdersOf(now, devices, shares, []plugin.Holder{
		{Pod: "b/p", Container: "main", Devices: []string{"GPU-a::7", "fpga-0", "GPU-b::0", "GPU-a::2"}},
		{Pod: "a/p", Container: "side", Devices: []string{"GPU-a::1"}},
		{Pod: "a/p", Container: "main", Devices: []string{"GPU-a::0"}},
		{Pod: "a/whole", Container: "main", Devices: []string{"GPU-c"}},
		{Pod: "a/other", Container: "main", Devices: []string{"fpga-1"}},
	})
	want := nodecontract.HoldersReport{AsOf: now.Truncate(time.Second), GPUs: []nodecontract.HeldGPU{
		{UUID: "GPU-a", Product: "Tesla T4", MemoryMiB: 15360, Replicas: 10, Health: nodecontract.GPUInService, Held: 4, Holders: []nodecontract.GPUHolder{
			{Pod: "a/p", Container: "main", IDs: []int{0}}, {Pod: "a/p", Container: "side", IDs: []int{1}}, {Pod: "b/p", Container: "main", IDs: []int{2, 7}},
		}},
		{UUID: "GPU-b", Index: 1, Product: "Tesla T4", MemoryMiB: 15360, Replicas: 10, Health: nodecontract.GPUOutOfService, Held: 1, Holders: []nodecontract.GPUHolder{
			{Pod: "b/p", Container: "main", IDs: []int{0}},
		}},
		{UUID: "GPU-c", Index: 2, Health: nodecontract.GPUCordoned, Held: 1, Holders: []nodecontract.GPUHolder{{Pod: "a/whole", Container: "main"}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAReportHasTheHoldersOfEachInstance(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	devices := append(gputest.Divided(1, 2, "3g.20gb", 19968), gpu.Device{UUID: "GPU-b", Index: 1, Product: "Tesla T4", MemoryMiB: 15360})
	first, second := devices[0].Instances[0].UUID, devices[0].Instances[1].UUID
	shares := map[string]plugin.Share{first: {Total: 3}, second: {Total: 3, Unhealthy: true}, "GPU-b": {Total: 1}}
	got := holdersOf(now, devices, shares, []plugin.Holder{
		{Pod: "a/p", Container: "main", Devices: []string{second + "::2", second + "::0"}},
		{Pod: "a/whole", Container: "main", Devices: []string{"GPU-b"}},
	})
	const product = "NVIDIA A100-SXM4-40GB"
	want := nodecontract.HoldersReport{AsOf: now, GPUs: []nodecontract.HeldGPU{
		{UUID: first, Instance: new(0), Profile: "3g.20gb", Product: product, MemoryMiB: 19968, Replicas: 3, Health: nodecontract.GPUInService},
		{UUID: second, Instance: new(1), Profile: "3g.20gb", Product: product, MemoryMiB: 19968, Replicas: 3, Health: nodecontract.GPUOutOfService, Held: 2, Holders: []nodecontract.GPUHolder{
			{Pod: "a/p", Container: "main", IDs: []int{0, 2}},
		}},
		{UUID: "GPU-b", Index: 1, Product: "Tesla T4", MemoryMiB: 15360, Replicas: 1, Health: nodecontract.GPUInService, Held: 1, Holders: []nodecontract.GPUHolder{{Pod: "a/whole", Container: "main"}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheNodeSaysWhichPodsHoldReplicas(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
	})
	said := func() nodecontract.HoldersReport {
		r, _, err := nodecontract.ParseHolders(api.annotation(nodecontract.HoldersAnnotation))
		if err != nil {
			t.Error(err)
		}
		return r
	}
	m.eventually("20 replicas", m.allocatable(20))
	m.eventually("the report has GPUs that nobody holds", func() bool {
		r := said()
		return len(r.GPUs) == 2 && r.GPUs[0].Replicas == 10 && r.GPUs[0].Held == 0 && r.GPUs[1].Product == "Tesla T4" && r.FreshAt(time.Now())
	})
	before := api.written(nodecontract.HoldersAnnotation)
	if _, err := m.kubelet.Allocate(t.Context(), "notebook", resource, "GPU-b::3"); err != nil {
		t.Fatal(err)
	}
	m.eventually("a pod that comes is in it", func() bool {
		r := said()
		return r.GPUs[1].Held == 1 && len(r.GPUs[1].Holders) == 1 && r.GPUs[1].Holders[0].Pod == "default/notebook" && cmp.Equal(r.GPUs[1].Holders[0].IDs, []int{3})
	})
	time.Sleep(10 * m.agent.use.every)
	if n := api.written(nodecontract.HoldersAnnotation) - before; n != 1 {
		t.Errorf("one change was written %d times", n)
	}
	m.kubelet.Delete("notebook")
	m.eventually("a pod that is gone is not", func() bool { return said().GPUs[1].Held == 0 })
}

func TestAReportOfHoldersIsConfirmed(t *testing.T) {
	t.Parallel()
	m := &machine{t: t}
	api := m.withNode()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := nodecontract.HoldersReport{AsOf: noon, GPUs: []nodecontract.HeldGPU{{UUID: "GPU-a", Held: 1}}}
	changed := nodecontract.HoldersReport{AsOf: noon.Add(time.Second), GPUs: []nodecontract.HeldGPU{{UUID: "GPU-a"}}}
	at := func(after time.Duration) nodecontract.HoldersReport {
		return nodecontract.HoldersReport{AsOf: noon.Add(after), GPUs: r.GPUs}
	}
	for name, c := range map[string]struct {
		next nodecontract.HoldersReport
		want int
	}{
		"the same":                                {at(nodecontract.HoldersBeat - time.Second), 0},
		"the same, once it has to be confirmed":   {at(nodecontract.HoldersBeat), 1},
		"the same, after the clock was set back":  {at(-time.Minute), 1},
		"one in which something else is reported": {changed, 1},
	} {
		a := &Agent{node: m.node, use: &useWatch{written: r}}
		before := api.written(nodecontract.HoldersAnnotation)
		if err := a.writeHolders(t.Context(), c.next); err != nil {
			t.Fatal(err)
		}
		if n := api.written(nodecontract.HoldersAnnotation) - before; n != c.want {
			t.Errorf("%s was written %d times, want %d", name, n, c.want)
		}
	}
}
