package records

import (
	"slices"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
)

// GPUSet is a set of equal GPUs, or MIG instances, of which the agent chooses. It is zero for a machine on which it has no choice.
type GPUSet struct {
	Count int64
	// Each is what each GPU has when no pod uses it.
	Each planner.GPU
}

// GPUSetOf returns the set of GPUs that no pod uses. GPUs without room do not count.
func GPUSetOf(gpus []planner.GPU) GPUSet {
	gpus = slices.DeleteFunc(slices.Clone(gpus), func(g planner.GPU) bool { return g.Replicas == 0 })
	if len(gpus) < 2 || gpus[0].MemoryBytes == 0 {
		return GPUSet{}
	}
	return GPUSet{int64(len(gpus)), gpus[0]}
}

// Depth returns how many pods may share a GPU if the largest states an amount of device memory, in bytes.
func (s GPUSet) Depth(largest int64) int64 {
	if largest <= 0 {
		return s.Each.Replicas
	}
	return max(1, min(s.Each.Replicas, s.Each.MemoryBytes/largest))
}

// Memory returns the device memory that each pod may state at a depth.
func (s GPUSet) Memory(depth int64) int64 { return s.Each.MemoryBytes / depth }

// GPU returns the GPUs at a depth as one, less the replicas that pods hold.
func (s GPUSet) GPU(depth, held int64) planner.GPU {
	return planner.GPU{Replicas: max(0, s.Count*depth-held), MemoryBytes: s.Count * depth * s.Memory(depth)}
}

// AgentChooses reports whether the machines of a backend with these slots have GPUs of which the agent chooses. The scheduler chooses those of DRA drivers, and a
// slot is on the GPU for which it was made.
func AgentChooses(backend string, slots nodecontract.Slots) bool {
	return nodecontract.DriverOf(backend) == "" && slots.IsZero()
}

// Alone reports whether pods fit without another depth: they have one replica, and as many fit on a GPU as it has replicas. Pods that fit on no GPU count too:
// the planner says why.
func (s GPUSet) Alone(memory, replicas int64) bool {
	return memory > s.Each.MemoryBytes || replicas <= 1 && memory <= s.Memory(s.Each.Replicas)
}
