package launching

import (
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

// providersMemory is slightly longer than the AWS provider remembers refusals (UnavailableOfferingsTTL, 3 minutes, cleaned up every 10 seconds). Before
// that it would refuse again without a call to EC2.
const providersMemory = 3*time.Minute + 15*time.Second

// providersCount is slightly longer than the time after which the AWS provider counts the free slots of reservations again (capacityReservationPollPeriod in its
// pkg/controllers/nodeclass, 1 minute). Until then it refuses a slot that Karve has counted before it, without a call to EC2, and it counts a reservation that EC2 calls full as full. Of
// other refusals of a slot it knows for as long as of other offerings: a launch meanwhile fails once more, and the back-off doubles.
const providersCount = time.Minute + 15*time.Second

// causes defines what to do for each reason of v1alpha1. Those of the clouds are in their Providers.
//
// It is an allow-list. A refusal is about offerings only if its reason is their capacity, a quota for them, or that they are not supported. All other
// failures may be outages, which say nothing about the offering. They pause the launches of the GPUNodeClass, and the same launch is tried again.
var causes = map[string]cloud.Cause{
	v1alpha1.RefusalInsufficientCapacity: {Scope: cloud.AboutOfferings, First: providersMemory, Most: time.Hour},
	v1alpha1.RefusalSpotInterrupted:      {Scope: cloud.AboutOfferings, First: providersMemory, Most: time.Hour},
	v1alpha1.RefusalUnsupported:          {Scope: cloud.AboutOfferings, First: time.Hour, Most: 6 * time.Hour},
	v1alpha1.RefusalVCPULimit:            {Scope: cloud.AboutQuota, First: 10 * time.Minute, Most: time.Hour},
	v1alpha1.RefusalSpotQuota:            {Scope: cloud.AboutQuota, First: 10 * time.Minute, Most: time.Hour},
	v1alpha1.RefusalNoAddresses:          {Scope: cloud.AboutZones, First: providersMemory, Most: time.Hour},
	v1alpha1.RefusalSpotRole:             {Scope: cloud.AboutCapacityType, First: 15 * time.Minute, Most: time.Hour},
	// The ledger itself sets this reason: see Ledger.Judge.
	v1alpha1.RefusalTypeFailing: {Scope: cloud.AboutTypes, First: providersMemory, Most: time.Hour},

	// The next three are for connections that are refused or closed, hangs, timeouts, invalid responses and service errors. The provider does not
	// distinguish them.
	v1alpha1.RefusalLaunchFailed: {Scope: cloud.AboutClass, First: cloud.Pause, Most: cloud.LongestPause, Patience: cloud.FailingGrace},
	v1alpha1.RefusalSilent:       {Scope: cloud.AboutAccount, First: cloud.Pause, Most: cloud.LongestPause},
	v1alpha1.RefusalVanished:     {Scope: cloud.AboutAccount, First: 15 * time.Second, Most: cloud.LongestPause},
	v1alpha1.RefusalFleetQuota:   {Scope: cloud.AboutAccount, First: time.Minute, Most: 10 * time.Minute},

	v1alpha1.RefusalNodeClassNotReady: {Scope: cloud.AboutClass, First: 10 * time.Second, Most: cloud.LongestPause},
	v1alpha1.RefusalNodeClassNotFound: {Scope: cloud.AboutClass, First: 10 * time.Second, Most: cloud.LongestPause},
}

// causeOf returns what to do for a reason of v1alpha1 or of a cloud. It returns false for an unknown one.
func causeOf(reason string) (cloud.Cause, bool) {
	for _, p := range clouds.All {
		if c, ok := p.Causes[reason]; ok {
			return c, true
		}
	}
	c, ok := causes[reason]
	return c, ok
}

// scopeOf returns what a reason is about.
func scopeOf(reason string) cloud.Scope {
	c, _ := causeOf(reason)
	return c.Scope
}

// Known returns the reason if it has a cause, and LaunchFailed otherwise. This bounds the number of metric labels.
func Known(reason string) string {
	if _, ok := causeOf(reason); ok {
		return reason
	}
	return v1alpha1.RefusalLaunchFailed
}
