package v1alpha1

import "karve.sh/karve/pkg/nodecontract"

// sharingStrategy computes how a strategy divides the GPUs of a node. Each strategy has its own file.
type sharingStrategy interface {
	// resource returns the name of the resource that pods request.
	resource(s Sharing) string
	// replicas returns the minimum and maximum number of replicas of a GPU with the name (as in the cloud's label of an instance type, for example "t4").
	// Both are at least 1. The planner counts with them.
	replicas(s Sharing, gpuName string) (least, most int64)
	// shared reports whether several pods may be on one GPU.
	shared() bool
}

// sharingStrategies has all strategies that the API admits.
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

// Resource returns the name of the resource that the nodes expose and that pods request. With MIG it is that of the first layout: see
// [Sharing.Resources].
func (s Sharing) Resource() string { return s.strategy().resource(s) }

// ReplicasFor returns the number of replicas of each GPU with the name, as in the cloud's label of an instance type. It is at least 1.
func (s Sharing) ReplicasFor(gpuName string) int64 {
	least, _ := s.strategy().replicas(s, gpuName)
	return least
}

// ReplicasRange returns the minimum and maximum number of replicas of a GPU with the name.
func (s Sharing) ReplicasRange(gpuName string) (least, most int64) {
	return s.strategy().replicas(s, gpuName)
}

// Shared reports whether several pods may be on one GPU.
func (s Sharing) Shared() bool { return s.strategy().shared() }

// UsesDRA reports whether replicas are devices of Dynamic Resource Allocation, so that pods may have claims for them.
func (s Sharing) UsesDRA() bool { return s.DRADriver() != "" }

// DRADriver returns the name of the DRA driver that serves the GPUs. It is "" for the device plugin.
func (s Sharing) DRADriver() string { return nodecontract.DriverOf(string(s.Backend)) }

// PromisedBackend returns the backend as the node agent reads it. It is "" for the device plugin.
func (s Sharing) PromisedBackend() string {
	if s.UsesDRA() {
		return string(s.Backend)
	}
	return ""
}

// RefusesAboveOne reports whether a pod with a container that requests more than one replica stays pending. It may always request several whole GPUs. With DRA, the
// replicas of a container would have to be on different GPUs. MIG instances that are not shared are separate devices.
func (s Sharing) RefusesAboveOne() bool {
	switch s.Strategy {
	case StrategyNone:
		return false
	case StrategyMPS, StrategyMemorySlots:
		return true
	case StrategyMIG:
		return s.UsesDRA() && s.PodsPerInstance() > 1 || s.RequestsAboveOne == RequestsAboveOneRefuse
	default:
		return s.UsesDRA() || s.RequestsAboveOne == RequestsAboveOneRefuse
	}
}

// RefusedReplicas returns the number of replicas that must not be above one if RefusesAboveOne. The device plugin counts those of a container, as NVIDIA's does
// with failRequestsGreaterThanOne. With DRA, all replicas of a pod are requests of one claim.
func (s Sharing) RefusedReplicas(mostInOneContainer, ofPod int64) int64 {
	if s.UsesDRA() {
		return ofPod
	}
	return mostInOneContainer
}
