package v1alpha1

import (
	"fmt"
	"time"
)

// DefaultMaxPremiumPercent is the value that the API server writes where maxPremiumPercent is left out.
const DefaultMaxPremiumPercent = 15

// MaxPremium is how much more an hour a machine may cost than the one that was chosen, in percent.
func (l Launch) MaxPremium() int64 {
	if l.MaxPremiumPercent == nil {
		return DefaultMaxPremiumPercent
	}
	return int64(*l.MaxPremiumPercent)
}

// DefaultTerminationGracePeriod is the value that the API server writes where terminationGracePeriod is left out: long enough for pods that end in minutes and budgets
// that let one go at a time. Without a bound one pod that cannot be evicted keeps a tainted, half-dead machine for good, since deleting a NodeClaim cannot be undone.
const DefaultTerminationGracePeriod = "1h"

// DrainDuration is how long machines may drain whose NodePool says nothing; nil for as long as it takes.
func (s *GPUNodeClassSpec) DrainDuration() (*time.Duration, error) {
	value := s.TerminationGracePeriod
	switch value {
	case IdleNever:
		return nil, nil
	case "":
		value = DefaultTerminationGracePeriod
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		return nil, fmt.Errorf("reading terminationGracePeriod: %w", err)
	}
	if d < 0 {
		return nil, fmt.Errorf("reading terminationGracePeriod: %q is negative", value)
	}
	return &d, nil
}

// Any stands in a refused offering for every instance type, zone or capacity type.
const Any = "*"

// PausesLaunches says whether the refusal is about everything that the GPUNodeClass could launch.
func (r *RefusedOffering) PausesLaunches() bool {
	return r.InstanceType == Any && r.Zone == Any && r.CapacityType == Any
}

// Reasons of refused offerings. Where Karpenter's AWS provider has a word for what happened it is that word. The same word is a metric label.
const (
	// RefusalInsufficientCapacity: the cloud has no such machine there at present.
	RefusalInsufficientCapacity = "InsufficientCapacity"
	// RefusalUnsupported: the cloud does not offer the instance type in the zone.
	RefusalUnsupported = "Unsupported"
	// RefusalVCPULimit and RefusalSpotQuota: the account may have no more vCPUs of the type's quota, on demand or as spot. All types of that quota with
	// at least as many vCPUs are left alone.
	RefusalVCPULimit = "VCPULimitExceeded"
	RefusalSpotQuota = "SpotQuotaExceeded"
	// RefusalFleetQuota: the account may ask for no more machines at present.
	RefusalFleetQuota = "FleetQuotaExceeded"
	// RefusalNoAddresses: the subnets of the zone have no free addresses.
	RefusalNoAddresses = "InsufficientFreeAddressesInSubnet"
	// RefusalSpotRole: the role with which EC2 launches spot machines does not exist, and Karpenter may not create it.
	RefusalSpotRole = "SpotSLRCreationFailed"
	// RefusalSpotInterrupted: the cloud took a spot machine back.
	RefusalSpotInterrupted = "SpotInterrupted"
	// RefusalNodeClassNotReady: the cloud's node class was not Ready, or not as Karpenter had last seen it.
	RefusalNodeClassNotReady = "NodeClassNotReady"
	// RefusalNodeClassNotFound: the cloud's node class does not exist.
	RefusalNodeClassNotFound = "NodeClassNotFound"
	// RefusalVanished: the NodeClaim was deleted before it was launched, and no event says why. It says nothing about the offering: all launches of the
	// GPUNodeClass pause.
	RefusalVanished = "Vanished"
	// RefusalSilent: the NodeClaim's launch did not end in time. It says nothing about the offering: all launches of the GPUNodeClass pause.
	RefusalSilent = "NotLaunched"
	// RefusalLaunchFailed: the launch failed for a reason that Karpenter has no word for, such as a connection that was closed. It says nothing about the
	// offering: all launches of the GPUNodeClass pause.
	RefusalLaunchFailed = "LaunchFailed"
	// RefusalTypeFailing: launches of the instance type failed several times in a row, for no reason that is known, while launches of others came through.
	RefusalTypeFailing = "TypeFailing"
)
