package node

import (
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
)

// unusedReport returns the Node's report of unused replicas.
func (s *apiServer) unusedReport(t *testing.T) nodecontract.UnusedReport {
	t.Helper()
	r, err := nodecontract.ParseUnused(s.annotation(nodecontract.UnusedSinceAnnotation))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNodeReportsPodsThatDoNotUseTheirGPUs(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-3 * time.Hour).UTC().Truncate(time.Second)
	earlier := nodecontract.UnusedReport{
		AsOf:  time.Now().Add(-nodecontract.UnusedBeat - time.Minute).UTC().Truncate(time.Second),
		Since: map[string]time.Time{"default/notebook": since, "default/train": since, "default/gone": since},
	}
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
	})
	m.eventually("20 replicas", m.allocatable(20))
	for pod, id := range map[string]string{"notebook": "GPU-a::0", "train": "GPU-b::0"} {
		if _, err := m.kubelet.Allocate(t.Context(), pod, resource, id); err != nil {
			t.Fatal(err)
		}
	}
	// Allocated memory does not count as use.
	m.library.SetUsage("GPU-a", gpu.Usage{MemoryUsedMiB: 9000, Processes: []gpu.Process{{PID: 1 << 30, MemoryMiB: 9000}}})
	m.stop()
	api.annotate(nodecontract.UnusedSinceAnnotation, earlier.String())
	m.run()
	m.eventually("the next agent confirms what the one before it has seen", func() bool {
		r := api.unusedReport(t)
		return r.AsOf.After(earlier.AsOf) && r.Since["default/notebook"].Equal(since) && r.Since["default/train"].Equal(since) && len(r.Since) == 2
	})

	// The owner of the process is unknown, so it counts for every pod that holds the GPU.
	m.library.SetUsage("GPU-a", gpu.Usage{GPUPercent: 3, Processes: []gpu.Process{{PID: 1 << 30, MemoryMiB: 9000, SMPercent: 3}}})
	m.eventually("a pod that uses its GPU is not among them any more", func() bool {
		r := api.unusedReport(t)
		return r.Since["default/notebook"].IsZero() && r.Since["default/train"].Equal(since)
	})
	m.kubelet.Delete("train")
	m.eventually("without such pods there is no annotation", func() bool { return api.annotation(nodecontract.UnusedSinceAnnotation) == "" })
}

func TestUnreadableUnusedReportIsRemoved(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		api.annotate(nodecontract.UnusedSinceAnnotation, "since noon")
	})
	m.eventually("it is gone", func() bool {
		return api.annotation(nodecontract.UnusedSinceAnnotation) == "" && m.log.has("is not understood")
	})
}
