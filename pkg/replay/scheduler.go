package replay

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Scheduler models how pods are placed on existing machines. It knows the memory of each GPU.
type Scheduler struct {
	Name string
	// score rates a machine for a pod. The machine with the highest score wins, the oldest of several. If nil, the oldest machine with room wins.
	score func(capacity, free, request planner.Resources) float64
	// planned places moved pods as the plan does, the largest first.
	planned bool
}

// LeastAllocated and MostAllocated use the score of the kube-scheduler plugin with that name and that of TaintToleration. With its weight of 3, a
// PreferNoSchedule taint outweighs both resource scores. The other score plugins rate all nodes alike for pods without further rules. In all models,
// pods that wait for a machine are nominated for it and get there.
var (
	// LeastAllocated is kube-scheduler's default: CPU and memory as free and as balanced as possible.
	LeastAllocated = Scheduler{Name: "LeastAllocated", score: func(capacity, free, r planner.Resources) float64 {
		cpu, memory := after(capacity.MilliCPU, free.MilliCPU, r.MilliCPU), after(capacity.MemoryBytes, free.MemoryBytes, r.MemoryBytes)
		return 100*(1-(cpu+memory)/2) + 100*(1-math.Abs(cpu-memory)/2)
	}}
	// MostAllocated is Karve's second scheduler: it packs replicas, CPU and memory as tightly as possible.
	MostAllocated = Scheduler{Name: "MostAllocated", score: func(capacity, free, r planner.Resources) float64 {
		return 100 * (after(capacity.Replicas, free.Replicas, r.Replicas) + after(capacity.MilliCPU, free.MilliCPU, r.MilliCPU) +
			after(capacity.MemoryBytes, free.MemoryBytes, r.MemoryBytes)) / 3
	}}
	// FirstFit places pods as planned. It places others on the oldest machine with room, those with the most GPU memory first.
	FirstFit = Scheduler{Name: "first fit", planned: true}
)

// after returns the share of a capacity that is used once the pod is placed.
func after(capacity, free, request int64) float64 {
	if capacity == 0 {
		return 0
	}
	return float64(capacity-free+request) / float64(capacity)
}

// pick returns the function that chooses between the GPUs of a machine for a pod that requests GPU memory.
func (s Scheduler) pick() func(a, b planner.GPU) bool {
	if s.planned {
		return func(planner.GPU, planner.GPU) bool { return false }
	}
	return roomier
}

// order sorts the pending pods into the order in which they are scheduled.
func (s Scheduler) order(w *world) {
	if !s.planned {
		return
	}
	slices.SortStableFunc(w.waiting, func(a, b int) int {
		x, y := w.class(a), w.class(b)
		return cmp.Or(cmp.Compare(y.GPUMemoryBytes, x.GPUMemoryBytes), cmp.Compare(y.Requests.MilliCPU, x.Requests.MilliCPU),
			cmp.Compare(y.Requests.MemoryBytes, x.Requests.MemoryBytes), cmp.Compare(a, b))
	})
}

func (s Scheduler) schedule(w *world) {
	s.order(w)
	w.waiting = slices.DeleteFunc(w.waiting, func(pod int) bool {
		c := w.class(pod)
		var best *machine
		var bestOn []int
		bestScore := 0.0
		for _, m := range w.machines {
			on := m.gpusFor(c, s.pick())
			if on == nil || !w.admitted(w.trace.Pods[pod].Shape, m) {
				continue
			}
			score := 0.0
			if s.score != nil {
				score = s.score(w.trace.Snapshot.Offerings[m.offering].Free, m.free, c.Requests)
			}
			if !m.surplus {
				score += 300
			}
			if best == nil || score > bestScore {
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

// seat places pending pods on a machine, on GPUs as in [planner.Launch].
func (w *world) seat(m *machine, pods []string, gpus []int, s Scheduler) {
	for i, n := range pods {
		if pod := podOf(n); gpus != nil && gpus[i] >= 0 {
			w.place(pod, m, slices.Repeat([]int{gpus[i]}, int(w.class(pod).Requests.Replicas)))
		}
	}
	for _, n := range pods {
		if pod := podOf(n); w.pods[pod].machine == nil {
			w.place(pod, m, m.gpusFor(w.class(pod), s.pick()))
		}
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(pod int) bool { return w.pods[pod].machine != nil })
}
