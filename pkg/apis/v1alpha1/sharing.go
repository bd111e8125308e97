package v1alpha1

import (
	"fmt"
	"slices"
	"time"
)

// IdleNever is the value of Consolidation.IdleAfter that keeps idle machines.
const IdleNever = "Never"

// DefaultIdleAfter is the value that the API server writes where idleAfter is left out; IdleDuration reads an empty value as it.
const DefaultIdleAfter = "5m"

// Resource is the name of the resource that the machines expose and that pods ask for.
func (s Sharing) Resource() string {
	switch {
	case s.Strategy == StrategyNone:
		return ResourceGPU
	case s.ResourceName != "":
		return s.ResourceName
	default:
		return ResourceGPUShared
	}
}

// ReplicasFor is the number of replicas of each GPU of the given name (as in the label karpenter.k8s.aws/instance-gpu-name): that of its
// override, else replicas, and 1 where GPUs are not shared. It is never below 1.
func (s Sharing) ReplicasFor(gpuName string) int64 {
	if s.Strategy == StrategyNone {
		return 1
	}
	for i := range s.Overrides {
		if s.Overrides[i].GPUName == gpuName {
			return max(1, int64(s.Overrides[i].Replicas))
		}
	}
	if s.Replicas == nil {
		return 1
	}
	return max(1, int64(*s.Replicas))
}

// ReplicasRange is the least and the most replicas that a GPU of the name may be shared into: maxReplicas is the most where replicas is the least. An override
// is both.
func (s Sharing) ReplicasRange(gpuName string) (least, most int64) {
	least = s.ReplicasFor(gpuName)
	if s.MaxReplicas == nil || s.Strategy == StrategyNone || slices.ContainsFunc(s.Overrides, func(o ReplicasOverride) bool { return o.GPUName == gpuName }) {
		return least, least
	}
	return least, max(least, int64(*s.MaxReplicas))
}

// RefusesAboveOne says whether a pod that asks for more than one replica stays pending. A pod may always ask for several whole GPUs.
func (s Sharing) RefusesAboveOne() bool {
	return s.Strategy != StrategyNone && s.RequestsAboveOne == RequestsAboveOneRefuse
}

// IdleDuration is how long a machine holds no pod before it is given back; never says that it is kept instead.
func (c Consolidation) IdleDuration() (d time.Duration, never bool, err error) {
	idleAfter := c.IdleAfter
	switch idleAfter {
	case IdleNever:
		return 0, true, nil
	case "":
		idleAfter = DefaultIdleAfter
	}
	d, err = time.ParseDuration(idleAfter)
	if err != nil {
		return 0, false, fmt.Errorf("reading idleAfter: %w", err)
	}
	if d < 0 {
		return 0, false, fmt.Errorf("reading idleAfter: %q is negative; use Never to keep idle machines", idleAfter)
	}
	return d, false, nil
}
