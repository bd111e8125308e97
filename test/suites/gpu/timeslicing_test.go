//go:build cgo && gpu

package gpu_test

import (
	"strconv"
	"strings"
	"testing"
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
