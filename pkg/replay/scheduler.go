package replay

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// score rates a machine for a pod as kube-scheduler does by default, so that CPU and memory are as free and as balanced as possible: the sum of its scores LeastAllocated
// and NodeResourcesBalancedAllocation, and of TaintToleration, which has a weight of 3. The other score plugins rate all nodes alike for pods without further rules.
func (w *world) score(m *machine, request planner.Resources) float64 {
	capacity := w.trace.Snapshot.Offerings[m.offering].Free
	cpu, memory := after(capacity.MilliCPU, m.free.MilliCPU, request.MilliCPU), after(capacity.MemoryBytes, m.free.MemoryBytes, request.MemoryBytes)
	score := 100*(1-(cpu+memory)/2) + 100*(1-math.Abs(cpu-memory)/2)
	if !m.surplus {
		score += 300
	}
	return score
}

// after returns the share of a capacity that is used once the pod is placed.
func after(capacity, free, request int64) float64 {
	if capacity == 0 {
		return 0
	}
	return float64(capacity-free+request) / float64(capacity)
}

// schedule places pending pods where there is room, on the machine with the highest score, the oldest of several. It knows the memory of each GPU.
func (w *world) schedule() {
	w.waiting = slices.DeleteFunc(w.waiting, func(pod int) bool {
		c := w.class(pod)
		var best *machine
		var bestOn []int
		bestScore := 0.0
		for _, m := range w.machines {
			on := m.gpusFor(c)
			if on == nil || !w.admitted(w.trace.Pods[pod].Shape, m) {
				continue
			}
			if score := w.score(m, c.Requests); best == nil || score > bestScore {
				best, bestOn, bestScore = m, on, score
			}
		}
		if best == nil {
			return false
		}
		w.place(pod, best, bestOn)
		return true
	})
}

// seat places pending pods on a machine that was launched for them, on GPUs as in [planner.Launch]: they are nominated for it and get there.
func (w *world) seat(m *machine, pods []string, gpus []int) {
	for i, n := range pods {
		if pod := podOf(n); gpus != nil && gpus[i] >= 0 {
			w.place(pod, m, slices.Repeat([]int{gpus[i]}, int(w.class(pod).Requests.Replicas)))
		}
	}
	for _, n := range pods {
		if pod := podOf(n); w.pods[pod].machine == nil {
			w.place(pod, m, m.gpusFor(w.class(pod)))
		}
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(pod int) bool { return w.pods[pod].machine != nil })
}
