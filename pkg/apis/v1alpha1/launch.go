package v1alpha1

import "time"

// DefaultMaxPremiumPercent is the maxPremiumPercent that the API server sets by default.
const DefaultMaxPremiumPercent = 15

// MaxPremium returns how much more per hour a node may cost than the chosen offering, in percent.
func (l Launch) MaxPremium() int64 {
	if l.MaxPremiumPercent == nil {
		return DefaultMaxPremiumPercent
	}
	return int64(*l.MaxPremiumPercent)
}

// DefaultTerminationGracePeriod is the terminationGracePeriod that the API server sets by default. It suffices for pods that end in minutes and for
// budgets that allow one disruption at a time. Without a bound, one pod that cannot be evicted would keep a tainted, half-drained node forever, since
// deleting a NodeClaim cannot be undone.
const DefaultTerminationGracePeriod = "1h"

// DrainDuration returns how long nodes may drain if their NodePool sets no limit. It is nil if there is no limit.
func (s *GPUNodeClassSpec) DrainDuration() (*time.Duration, error) {
	d, never, err := durationOr("terminationGracePeriod", s.TerminationGracePeriod, DefaultTerminationGracePeriod, "")
	if never || err != nil {
		return nil, err
	}
	return &d, nil
}

// Any matches every instance type, zone or capacity type in a refused offering.
const Any = "*"

// PausesLaunches reports whether the refusal covers everything that the GPUNodeClass could launch.
func (r *RefusedOffering) PausesLaunches() bool {
	return r.InstanceType == Any && r.Zone == Any && r.CapacityType == Any
}

// Reasons of refused offerings. They are the words of Karpenter's AWS provider if it has one for the cause. They also serve as metric labels.
const (
	// RefusalInsufficientCapacity: the cloud has no such instances in the zone at present.
	RefusalInsufficientCapacity = "InsufficientCapacity"
	// RefusalUnsupported: the cloud does not offer the instance type in the zone.
	RefusalUnsupported = "Unsupported"
	// RefusalVCPULimit and RefusalSpotQuota: the account's vCPU quota for the type is used up, on demand or as spot. Karve launches no type of that quota
	// with at least as many vCPUs.
	RefusalVCPULimit = "VCPULimitExceeded"
	RefusalSpotQuota = "SpotQuotaExceeded"
	// RefusalFleetQuota: the account may request no more instances at present.
	RefusalFleetQuota = "FleetQuotaExceeded"
	// RefusalNoAddresses: the subnets of the zone have no free addresses.
	RefusalNoAddresses = "InsufficientFreeAddressesInSubnet"
	// RefusalSpotRole: the role with which EC2 launches spot instances does not exist, and Karpenter may not create it.
	RefusalSpotRole = "SpotSLRCreationFailed"
	// RefusalSpotInterrupted: the cloud interrupted a spot instance.
	RefusalSpotInterrupted = "SpotInterrupted"
	// RefusalNodeClassNotReady: the cloud's node class was not Ready, or had changed since Karpenter last saw it.
	RefusalNodeClassNotReady = "NodeClassNotReady"
	// RefusalNodeClassNotFound: the cloud's node class does not exist.
	RefusalNodeClassNotFound = "NodeClassNotFound"
	// RefusalVanished: the NodeClaim was deleted before it was launched, and no event says why. This says nothing about the offering, so all launches of
	// the GPUNodeClass pause.
	RefusalVanished = "Vanished"
	// RefusalSilent: the launch of the NodeClaim did not finish in time. This says nothing about the offering, so all launches of the GPUNodeClass pause.
	RefusalSilent = "NotLaunched"
	// RefusalLaunchFailed: the launch failed for a reason that Karpenter does not classify, such as a closed connection. This says nothing about the
	// offering, so all launches of the GPUNodeClass pause.
	RefusalLaunchFailed = "LaunchFailed"
	// RefusalTypeFailing: launches of the instance type failed several times in a row for an unknown reason, while launches of other types succeeded.
	RefusalTypeFailing = "TypeFailing"
)
