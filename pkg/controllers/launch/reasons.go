package launch

import (
	"maps"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

// providersMemory is a little longer than the AWS provider itself remembers what was refused (UnavailableOfferingsTTL, 3 minutes, swept every 10
// seconds): before that it would refuse again without asking EC2.
const providersMemory = 3*time.Minute + 15*time.Second

// causes says what is done about each reason: those of v1alpha1, and those of the clouds.
//
// It is an allow-list. A refusal is about offerings only if its reason names their capacity, a quota of theirs, or that they are not supported. Every other
// failure may be an outage, which says nothing about the offering: it pauses the launches of the GPUNodeClass, and the same is tried again.
var causes = withClouds(map[string]cloud.Cause{
	v1alpha1.RefusalInsufficientCapacity: {Scope: cloud.AboutOfferings, First: providersMemory, Most: time.Hour},
	v1alpha1.RefusalSpotInterrupted:      {Scope: cloud.AboutOfferings, First: providersMemory, Most: time.Hour},
	v1alpha1.RefusalUnsupported:          {Scope: cloud.AboutOfferings, First: time.Hour, Most: 6 * time.Hour},
	v1alpha1.RefusalVCPULimit:            {Scope: cloud.AboutQuota, First: 10 * time.Minute, Most: time.Hour},
	v1alpha1.RefusalSpotQuota:            {Scope: cloud.AboutQuota, First: 10 * time.Minute, Most: time.Hour},
	v1alpha1.RefusalNoAddresses:          {Scope: cloud.AboutZones, First: providersMemory, Most: time.Hour},
	v1alpha1.RefusalSpotRole:             {Scope: cloud.AboutCapacityType, First: 15 * time.Minute, Most: time.Hour},
	// What the ledger concludes: see Ledger.judge.
	v1alpha1.RefusalTypeFailing: {Scope: cloud.AboutTypes, First: providersMemory, Most: time.Hour},

	// The next three are what connections that are refused or closed, hangs, timeouts, answers that cannot be decoded and errors of the service look like: the
	// provider does not tell them apart.
	v1alpha1.RefusalLaunchFailed: {Scope: cloud.AboutClass, First: cloud.Pause, Most: cloud.LongestPause, Patience: cloud.FailingGrace},
	v1alpha1.RefusalSilent:       {Scope: cloud.AboutAccount, First: cloud.Pause, Most: cloud.LongestPause},
	v1alpha1.RefusalVanished:     {Scope: cloud.AboutAccount, First: 15 * time.Second, Most: cloud.LongestPause},
	v1alpha1.RefusalFleetQuota:   {Scope: cloud.AboutAccount, First: time.Minute, Most: 10 * time.Minute},

	v1alpha1.RefusalNodeClassNotReady: {Scope: cloud.AboutClass, First: 10 * time.Second, Most: cloud.LongestPause},
	v1alpha1.RefusalNodeClassNotFound: {Scope: cloud.AboutClass, First: 10 * time.Second, Most: cloud.LongestPause},
})

func withClouds(causes map[string]cloud.Cause) map[string]cloud.Cause {
	for _, p := range clouds.All {
		maps.Copy(causes, p.Causes)
	}
	return causes
}

// known returns the reason if there is a cause for it, so that metrics have few labels, and LaunchFailed otherwise.
func known(reason string) string {
	if _, ok := causes[reason]; ok {
		return reason
	}
	return v1alpha1.RefusalLaunchFailed
}
