package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
)

func TestAnnotationNamesGPUsByIndexOrUUID(t *testing.T) {
	t.Parallel()
	devices := []gpu.Device{{UUID: "GPU-a"}, {UUID: "GPU-b", Index: 1}, {UUID: "GPU-d", Index: 3}}
	for name, c := range map[string]struct {
		annotation string
		before     map[string]gpu.Device
		want       []string
		unknown    []string
	}{
		"nothing":                              {"", nil, nil, nil},
		"an index":                             {"1", nil, []string{"GPU-b"}, nil},
		"a UUID":                               {"GPU-d", nil, []string{"GPU-d"}, nil},
		"both, with spaces and commas":         {" 0, GPU-d ,,", nil, []string{"GPU-a", "GPU-d"}, nil},
		"a GPU twice":                          {"1,GPU-b,1", nil, []string{"GPU-b"}, nil},
		"an index that the node lacks":         {"1,2", nil, []string{"GPU-b"}, []string{"2"}},
		"nonsense, each once":                  {"all,-1,GPU-x,all,01", nil, nil, []string{"all", "-1", "GPU-x", "01"}},
		"a GPU that is lost":                   {"GPU-c,0", map[string]gpu.Device{"GPU-c": {UUID: "GPU-c", Index: 2}}, []string{"GPU-a", "GPU-c"}, nil},
		"an index that another GPU has by now": {"1", map[string]gpu.Device{"1": {UUID: "GPU-c", Index: 1}}, []string{"GPU-c"}, nil},
		"a GPU that is not cordoned any more":  {"0", map[string]gpu.Device{"1": {UUID: "GPU-b", Index: 1}}, []string{"GPU-a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gpus, unknown := resolve(c.annotation, devices, c.before)
			if got := slices.Sorted(maps.Keys(uuidsOf(gpus))); !slices.Equal(got, c.want) || !slices.Equal(unknown, c.unknown) {
				t.Errorf("%q and unknown %q, want %q and %q", got, unknown, c.want, c.unknown)
			}
		})
	}
}

func FuzzCordon(f *testing.F) {
	f.Add("0,GPU-b, 7,,x")
	f.Add(strings.Repeat("9,", 5000))
	devices := []gpu.Device{{UUID: "GPU-a"}, {UUID: "GPU-b", Index: 1}}
	f.Fuzz(func(t *testing.T, annotation string) {
		gpus, unknown := resolve(annotation, devices, nil)
		for value, d := range gpus {
			if !slices.ContainsFunc(devices, func(known gpu.Device) bool { return known.UUID == d.UUID && known.Index == d.Index }) || value != d.UUID && value != fmt.Sprint(d.Index) {
				t.Errorf("%q names %+v", value, d)
			}
		}
		c := cordonCondition(gpus, unknown, devices)
		if (c.Status == "True") != (len(gpus) > 0) || (c.Reason == nodecontract.ReasonCordonInvalid) != (len(unknown) > 0) || len(c.Message) > 8<<10 {
			t.Errorf("%d GPUs, %d unknown: %+v", len(gpus), len(unknown), c)
		}
		again, still := resolve(annotation, nil, gpus)
		if !maps.EqualFunc(again, gpus, func(a, b gpu.Device) bool { return a.UUID == b.UUID && a.Index == b.Index }) || !slices.Equal(still, unknown) {
			t.Errorf("without the GPUs it is %v, %q, want %v, %q", again, still, gpus, unknown)
		}
	})
}

func TestCordonedGPUTakesNoPods(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
	})
	m.eventually("20 replicas", m.allocatable(20))
	if _, err := m.kubelet.Allocate(t.Context(), "stays", resource, "GPU-b::3"); err != nil {
		t.Fatal(err)
	}

	api.annotate(nodecontract.GPUCordonAnnotation, "1")
	m.eventually("10 replicas", m.allocatable(10))
	m.untilCondition(api, nodecontract.CordonCondition, "True GPUsCordoned", "GPU 1 (GPU-b) takes no new pods", nodecontract.GPUCordonAnnotation)
	m.eventually("an event", func() bool { return api.count(nodecontract.ReasonCordoned, "GPU 1 (GPU-b)") == 1 })
	m.eventually("the report of holders", func() bool {
		r, _, err := nodecontract.ParseHolders(api.annotation(nodecontract.HoldersAnnotation))
		return err == nil && len(r.GPUs) == 2 && r.GPUs[0].Health == nodecontract.GPUInService && r.GPUs[1].Health == nodecontract.GPUCordoned && r.GPUs[1].Held == 1
	})
	if _, metrics := m.get("/metrics"); !strings.Contains(metrics, "karve_node_gpus_cordoned 1\n") {
		t.Error("the metric does not say that a GPU is cordoned")
	}
	for i := range 10 {
		grant, err := m.kubelet.Admit(t.Context(), fmt.Sprintf("pod-%d", i), resource, 1)
		if err != nil || !strings.HasPrefix(grant.IDs[0], "GPU-a") {
			t.Errorf("pod %d has %v, %v", i, grant.IDs, err)
		}
	}
	if _, err := m.kubelet.Admit(t.Context(), "too-many", resource, 1); err == nil {
		t.Error("a pod has a replica of the cordoned GPU")
	}

	// An agent that starts anew does not offer the GPU, not even for a moment.
	m.stop()
	before := len(m.kubelet.History(resource))
	m.run()
	m.eventually("10 replicas", m.allocatable(10))
	for _, list := range m.kubelet.History(resource)[before:] {
		if list.Healthy() > 10 {
			t.Errorf("the new agent offered %d replicas", list.Healthy())
		}
	}

	api.annotate(nodecontract.GPUCordonAnnotation, "1,7,GPU-x")
	m.untilCondition(api, nodecontract.CordonCondition, "True GPUCordonInvalid", `names "7", "GPU-x"`, "write indices (0, 1) or UUIDs", "GPU 1 (GPU-b) takes no new pods")
	m.eventually("a warning", func() bool { return api.count(nodecontract.ReasonCordonInvalid, `"7", "GPU-x"`) == 1 })
	api.annotate(nodecontract.GPUCordonAnnotation, "GPU-x")
	m.untilCondition(api, nodecontract.CordonCondition, "False GPUCordonInvalid", `names "GPU-x"`)
	m.eventually("20 replicas", m.allocatable(20))
	m.eventually("an event", func() bool { return api.count(nodecontract.ReasonUncordoned, "GPU 1 (GPU-b) takes pods again") == 1 })
	api.change(func() { delete(api.annotations, nodecontract.GPUCordonAnnotation) })
	m.untilCondition(api, nodecontract.CordonCondition, "False NoGPUsCordoned", "All GPUs may take pods")
}

func TestCordonIsUndoneWhileAgentIsAway(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
	})
	m.eventually("20 replicas", m.allocatable(20))
	if c := strings.TrimSpace(api.condition(nodecontract.CordonCondition)); c != ":" {
		t.Errorf("a Node that nobody annotated has the condition %s", c)
	}
	api.annotate(nodecontract.GPUCordonAnnotation, "0,1")
	m.untilCondition(api, nodecontract.CordonCondition, "True GPUsCordoned", "GPUs 0 (GPU-a), 1 (GPU-b) take no new pods")
	m.eventually("no replicas", m.allocatable(0))
	m.stop()
	api.change(func() { delete(api.annotations, nodecontract.GPUCordonAnnotation) })
	m.run()
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, nodecontract.CordonCondition, "False NoGPUsCordoned")
}
