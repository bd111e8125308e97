package snapshot

import (
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/density"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// slowdown returns how many times as long a pod of a class takes for its work on a machine of an offering as if it had the GPU to itself, in millionths, once the
// machine is full of such pods. It is [density.AsAlone] unless the GPUNodeClass says how busy pods are.
func (v *View) slowdown(class *planner.Class, offering int) int64 {
	o := &v.Snapshot.Offerings[offering]
	sharing := v.Pools[o.Pool].Class.Spec.Sharing
	if sharing.BusyPercent == nil {
		return density.AsAlone
	}
	mode := density.TimeSlicing
	if sharing.Strategy == v1alpha1.StrategyMPS || sharing.MemorySlots().Enforcement == nodecontract.EnforceMPS {
		mode = density.MPS
	}
	gpus, replicas := v.Offerings[offering].Type.GPU.Count, v.Offerings[offering].ReplicasPerGPU
	if sharing.Strategy == v1alpha1.StrategyMIG {
		gpus, replicas = v.Offerings[offering].replicas()/sharing.PodsPerInstance(), sharing.PodsPerInstance()
	}
	pods := min(replicas/max(1, class.Requests.Replicas), facts.CeilDiv(podsOn(o, class), max(1, gpus)))
	if class.GPUMemoryBytes > 0 && sharing.Strategy != v1alpha1.StrategyMIG {
		pods = min(pods, v.Offerings[offering].Type.GPU.UsableMiB()*facts.BytesPerMiB/class.GPUMemoryBytes)
	}
	return density.Slowdown(mode, pods, int64(*sharing.BusyPercent))
}

// podsOn returns how many pods of a class fit on an empty machine by their requests. It is 0 if no GPU has the device memory for one.
func podsOn(o *planner.Offering, class *planner.Class) int64 {
	has := func(g planner.GPU) bool { return g.MemoryBytes >= class.GPUMemoryBytes }
	if class.GPUMemoryBytes > 0 && !slices.ContainsFunc(o.GPUs, has) {
		return 0
	}
	most := o.Free.Pods
	for _, of := range [][2]int64{
		{o.Free.MilliCPU, class.Requests.MilliCPU},
		{o.Free.MemoryBytes, class.Requests.MemoryBytes},
		{o.Free.EphemeralBytes, class.Requests.EphemeralBytes},
		{o.Free.Replicas, class.Requests.Replicas},
	} {
		if of[1] > 0 {
			most = min(most, of[0]/of[1])
		}
	}
	return most
}
