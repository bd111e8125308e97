package records

import (
	"maps"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
)

func PhysicalOf(t *catalog.InstanceType, replicasPerGPU int64) planner.Physical {
	return planner.Physical{
		MilliCPU: t.Capacity.MilliCPU, MemoryBytes: t.Capacity.MemoryBytes,
		GPUs: t.GPU.Count, Replicas: t.GPU.Count * replicasPerGPU, Nodes: 1,
	}
}

func AllocatableOf(t *catalog.InstanceType) planner.Resources {
	a := t.Allocatable
	return planner.Resources{MilliCPU: a.MilliCPU, MemoryBytes: a.MemoryBytes, EphemeralBytes: a.EphemeralBytes, Pods: a.Pods}
}

// MergedLabels returns the labels of all maps. Later maps win.
func MergedLabels(labels ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, l := range labels {
		maps.Copy(all, l)
	}
	return all
}
