package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/metrics"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/usage"
	"karve.sh/karve/pkg/nodecontract"
)

// slotMemory returns the memory that pods use on the GPUs on which they hold slots. It ignores a process that belongs to no pod, or whose memory the
// driver does not report.
func slotMemory(holders []plugin.Holder, usages map[string]gpu.Usage, owners map[int]string) []usage.PodMemory {
	var all []usage.PodMemory
	for _, h := range holders {
		for _, id := range h.Devices {
			mib, _, ok := alloc.Slot(id)
			uuid := alloc.UUID(id)
			if _, known := usages[uuid]; !ok || !known {
				continue
			}
			i := slices.IndexFunc(all, func(m usage.PodMemory) bool { return m.Pod == h.Pod && m.UUID == uuid })
			if i < 0 {
				i = len(all)
				all = append(all, usage.PodMemory{Pod: h.Pod, UUID: uuid})
				for _, p := range usages[uuid].Processes {
					if owners[p.PID] == h.Pod {
						all[i].UsedMiB += max(0, p.MemoryMiB)
					}
				}
			}
			all[i].SlotMiB += mib
		}
	}
	return all
}

// watchMemory reports the pods that use more device memory than their slots have.
func (a *Agent) watchMemory(ctx context.Context, now time.Time, devices []gpu.Device, holders []plugin.Holder, usages map[string]gpu.Usage) {
	var pods []usage.PodMemory
	if a.use.pods != nil && a.use.enforcement.Load() == nodecontract.EnforceWatch {
		pods = slotMemory(holders, usages, metrics.Users(proc, a.use.pods, pidsOf(usages)))
	}
	exceeding, begun := a.use.exceeding.Look(now, pods)
	a.report.exceeding(exceeding)
	for _, p := range begun {
		index := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.UUID == p.UUID })
		a.report.events.tell(ctx, health.Event{Warning: true, Reason: nodecontract.ReasonMemoryExceeded, Message: fmt.Sprintf(
			"Pod %s uses %d MiB of GPU %d (%s), and its slots have %d MiB: other pods of the GPU may lack memory. Request a larger slot, or limit it with memory.enforcement MPS",
			p.Pod, p.UsedMiB, devices[index].Index, p.UUID, p.SlotMiB)})
	}
}

func pidsOf(usages map[string]gpu.Usage) []int {
	var pids []int
	for _, u := range usages {
		for _, p := range u.Processes {
			if p.PID > 0 && !slices.Contains(pids, p.PID) {
				pids = append(pids, p.PID)
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// exceeding records the pods that use more device memory than their slots have.
func (r *report) exceeding(pods []usage.PodMemory) { r.locked(func() { r.exceeded = pods }) }

// writeExceeded writes the pods that use more device memory than their slots have.
func writeExceeded(t *metrics.Text, pods []usage.PodMemory) {
	t.Family("karve_pod_gpu_memory_exceeded_bytes", metrics.Gauge, "How much more device memory than its slots of the GPU the pod has used for at least 30 seconds. Only pods that do are listed.")
	for _, p := range pods {
		namespace, pod := splitPod(p.Pod)
		t.Sample(float64((p.UsedMiB-p.SlotMiB)<<20), "namespace", namespace, "pod", pod, "gpu", p.UUID)
	}
}
