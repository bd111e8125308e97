package v1alpha1

import "karve.sh/karve/pkg/nodecontract"

// sharingStrategy is what a strategy makes of the GPUs of a machine. Each strategy is in a file of its own.
type sharingStrategy interface {
	// resource is the name of the resource that pods ask for.
	resource(s Sharing) string
	// replicas are the least and the most replicas of a GPU of the name (as in the cloud's label of an instance type, for instance "t4"), at least 1: the capacity
	// that is planned with.
	replicas(s Sharing, gpuName string) (least, most int64)
	// shared says whether several pods may be on one GPU.
	shared() bool
}

// sharingStrategies are all that the API admits.
var sharingStrategies = map[Strategy]sharingStrategy{
	StrategyNone:        wholeGPUs{},
	StrategyTimeSlicing: timeSlicing{},
	StrategyMPS:         mps{},
	StrategyMIG:         migInstances{},
	StrategyMemorySlots: memorySlots{},
}

func (s Sharing) strategy() sharingStrategy {
	if strategy, ok := sharingStrategies[s.Strategy]; ok {
		return strategy
	}
	return timeSlicing{}
}

// Resource is the name of the resource that the machines expose and that pods ask for. With MIG it is that of the first layout: see [Sharing.Resources].
func (s Sharing) Resource() string { return s.strategy().resource(s) }

// ReplicasFor is the number of replicas of each GPU of the name, as in the cloud's label of an instance type. It is at least 1.
func (s Sharing) ReplicasFor(gpuName string) int64 {
	least, _ := s.strategy().replicas(s, gpuName)
	return least
}

// ReplicasRange is the least and the most replicas that a GPU of the name may be shared into.
func (s Sharing) ReplicasRange(gpuName string) (least, most int64) {
	return s.strategy().replicas(s, gpuName)
}

// Shared says whether several pods may be on one GPU.
func (s Sharing) Shared() bool { return s.strategy().shared() }

// UsesDRA says whether replicas are devices of Dynamic Resource Allocation, so that pods may have claims for them.
func (s Sharing) UsesDRA() bool { return s.DRADriver() != "" }

// DRADriver is the driver of Dynamic Resource Allocation that serves the GPUs. It is "" for the device plugin.
func (s Sharing) DRADriver() string { return nodecontract.DriverOf(string(s.Backend)) }

// PromisedBackend is the backend as the node agent reads it. It is "" for the device plugin.
func (s Sharing) PromisedBackend() string {
	if s.UsesDRA() {
		return string(s.Backend)
	}
	return ""
}

// RefusesAboveOne says whether a pod that asks for more than one replica stays pending. A pod may always ask for several whole GPUs. With DRA, the replicas of a
// container would have to be on as many GPUs. MIG instances that are not shared are devices of their own.
func (s Sharing) RefusesAboveOne() bool {
	switch s.Strategy {
	case StrategyNone:
		return false
	case StrategyMPS, StrategyMemorySlots:
		return true
	case StrategyMIG:
		return s.UsesDRA() && s.slices() > 1 || s.RequestsAboveOne == RequestsAboveOneRefuse
	default:
		return s.UsesDRA() || s.RequestsAboveOne == RequestsAboveOneRefuse
	}
}
