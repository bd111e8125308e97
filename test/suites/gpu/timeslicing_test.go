//go:build cgo && gpu

package gpu_test

import (
	"strconv"
	"strings"
	"testing"

	"karve.sh/karve/pkg/catalog"
)

func TestTimeSlicing(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	w.share("timeSlicing", 4)
	w.run()
	w.allocatable(4 * len(w.devices))

	grant, err := w.kubelet.Admit(t.Context(), "pod", resource, 1)
	w.must(err)
	uuid := grant.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"]
	if !strings.HasPrefix(grant.IDs[0], uuid+"::") {
		t.Errorf("the replica %s is of the GPU %s", grant.IDs[0], uuid)
	}
	// Pods share the memory without limits: each of two has more than a replica's part of it.
	part := int(w.devices[0].MemoryMiB) / 4
	first, second := w.use(uuid, strconv.Itoa(part*5/4)), w.use(uuid, strconv.Itoa(part*5/4))
	if first.problem != "" || second.problem != "" {
		t.Fatalf("two programs on a GPU: %q, %q", first.problem, second.problem)
	}
	w.eventually("the metrics show the memory of both", func() bool {
		return w.metric("karve_gpu_memory_used_bytes", uuid) >= float64(part*5/2)*(1<<20)
	})
	for _, p := range []*process{first, second} {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}
	w.share("timeSlicing", 2)
	w.allocatable(2 * len(w.devices))
	w.share("timeSlicing", 10)
	w.allocatable(10 * len(w.devices))
}

// TestUsableMemory compares what programs can use of a GPU with what plans count on.
func TestUsableMemory(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	model, ok := map[string]catalog.GPU{
		"Tesla T4": {Name: "t4", MemoryMiB: 16384}, "NVIDIA A10G": {Name: "a10g", MemoryMiB: 22888}, "NVIDIA L4": {Name: "l4", MemoryMiB: 22888},
		"NVIDIA L40S": {Name: "l40s", MemoryMiB: 45776}, "NVIDIA H100 80GB HBM3": {Name: "h100", MemoryMiB: 81920}, "NVIDIA H200": {Name: "h200", MemoryMiB: 144384},
	}[w.devices[0].Product]
	if !ok {
		t.Skipf("no plan is for a %s", w.devices[0].Product)
	}
	const drivers = 128 // MiB by which drivers differ
	if p := w.use(w.devices[0].UUID, "total"); p.mib < int(model.UsableMiB())-drivers || p.mib > int(model.UsableMiB())+drivers {
		t.Errorf("programs can use %d MiB, %q, of a %s, and plans count on %d", p.mib, p.problem, w.devices[0].Product, model.UsableMiB())
	}
}

func TestWholeGPUs(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	w.configure("version: v1\n")
	w.run()
	w.allocatable(len(w.devices))
	if len(w.devices) < 3 {
		t.Skip("a choice of connected GPUs needs three of them")
	}
	grant, err := w.kubelet.Admit(t.Context(), "pair", resource, 2)
	w.must(err)
	t.Logf("of %d GPUs, a pod with two has %q", len(w.devices), grant.IDs)
}
