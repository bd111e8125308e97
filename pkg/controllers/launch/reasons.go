package launch

import (
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// scope is how much a refusal is about.
type scope int

const (
	// aboutPairs: each instance type that the claim named in each of its zones.
	aboutPairs scope = iota
	// aboutTypes: the instance types that the claim named, in all zones and at every capacity type.
	aboutTypes
	// aboutQuota: the instance types that the claim named, in all zones, at its capacity type.
	aboutQuota
	// aboutZones: everything in the zones that the claim named.
	aboutZones
	// aboutCapacity: everything of the claim's capacity type.
	aboutCapacity
	// aboutClass: everything of the cloud's node class, until it changes.
	aboutClass
	// aboutAccount: everything.
	aboutAccount
)

// cause is what is to be done about a refusal for some reason.
type cause struct {
	scope scope
	// first is how long it is left alone, which doubles with each refusal up to most.
	first, most time.Duration
	// patience is how long Karpenter may go on trying while it tells this; 0 where it will not get better by trying.
	patience time.Duration
}

const (
	// providersMemory is a little longer than the AWS provider itself remembers what was refused (UnavailableOfferingsTTL, 3 minutes, swept every 10
	// seconds): before that it would refuse again without asking EC2.
	providersMemory = 3*time.Minute + 15*time.Second
	// failingGrace is how long a claim whose launch reports an error may go on trying: long enough for a second try, and short enough that
	// stock Karpenter, which waits for it, is hardly held up.
	failingGrace = 15 * time.Second
	// pause and longestPause bound how long launches wait after a failure that says nothing about what was asked for. Launches resume at most that long,
	// and a tenth, after the cloud has recovered.
	pause        = 30 * time.Second
	longestPause = 2 * time.Minute
	// untilTimeout has a claim tried for as long as any claim may be: what it waits for holds up all of Karpenter anyway.
	untilTimeout = time.Hour
)

// causes says what is done about each reason: those of v1alpha1, and the reasons of the condition Launched that the AWS provider writes
// (ToReasonMessage in its pkg/errors, and NewCreateError in pkg/cloudprovider and pkg/providers/instance, v1.14.1).
//
// It is an allow-list. A refusal is about offerings only if its reason names their capacity, a quota of theirs, or that they are not supported. Every other
// failure may be an outage, which says nothing about the offering: it pauses the launches of the GPUNodeClass, and the same is tried again.
var causes = map[string]cause{
	v1alpha1.RefusalInsufficientCapacity: {scope: aboutPairs, first: providersMemory, most: time.Hour},
	v1alpha1.RefusalSpotInterrupted:      {scope: aboutPairs, first: providersMemory, most: time.Hour},
	v1alpha1.RefusalUnsupported:          {scope: aboutPairs, first: time.Hour, most: 6 * time.Hour},
	v1alpha1.RefusalVCPULimit:            {scope: aboutQuota, first: 10 * time.Minute, most: time.Hour},
	v1alpha1.RefusalSpotQuota:            {scope: aboutQuota, first: 10 * time.Minute, most: time.Hour},
	"FreeTierIneligible":                 {scope: aboutQuota, first: time.Hour, most: 6 * time.Hour},
	v1alpha1.RefusalNoAddresses:          {scope: aboutZones, first: providersMemory, most: time.Hour},
	v1alpha1.RefusalSpotRole:             {scope: aboutCapacity, first: 15 * time.Minute, most: time.Hour},
	// What the ledger concludes: see Ledger.judge.
	v1alpha1.RefusalTypeFailing: {scope: aboutTypes, first: providersMemory, most: time.Hour},

	// The next three and InternalError are what connections that are refused or closed, hangs, timeouts, answers that cannot be decoded and errors of the
	// service look like: the provider does not tell them apart.
	v1alpha1.RefusalLaunchFailed:   {scope: aboutClass, first: pause, most: longestPause, patience: failingGrace},
	v1alpha1.RefusalSilent:         {scope: aboutAccount, first: pause, most: longestPause},
	v1alpha1.RefusalVanished:       {scope: aboutAccount, first: 15 * time.Second, most: longestPause},
	"InternalError":                {scope: aboutAccount, first: pause, most: longestPause, patience: untilTimeout},
	"InstanceTypeResolutionFailed": {scope: aboutAccount, first: pause, most: longestPause, patience: untilTimeout},
	"RequestLimitExceeded":         {scope: aboutAccount, first: pause, most: 5 * time.Minute, patience: untilTimeout},
	v1alpha1.RefusalFleetQuota:     {scope: aboutAccount, first: time.Minute, most: 10 * time.Minute},
	"AccountPendingVerification":   {scope: aboutAccount, first: 5 * time.Minute, most: time.Hour},

	v1alpha1.RefusalNodeClassNotReady: {scope: aboutClass, first: 10 * time.Second, most: longestPause},
	v1alpha1.RefusalNodeClassNotFound: {scope: aboutClass, first: 10 * time.Second, most: longestPause},
	"NodeClassReadinessUnknown":       {scope: aboutClass, first: 10 * time.Second, most: longestPause, patience: failingGrace},
	// Credentials that have expired are a missing right as well, and get better without a change of the node class.
	"Unauthorized":                   {scope: aboutClass, first: time.Minute, most: 5 * time.Minute},
	"SubnetResolutionFailed":         {scope: aboutClass, first: 2 * time.Minute, most: 30 * time.Minute},
	"SecurityGroupSubnetVPCMismatch": {scope: aboutClass, first: 2 * time.Minute, most: 30 * time.Minute},
	"AMIAuthorizationFailure":        {scope: aboutClass, first: 2 * time.Minute, most: 30 * time.Minute},
	"InvalidAMIID":                   {scope: aboutClass, first: 2 * time.Minute, most: 30 * time.Minute},
	"AMINotFound":                    {scope: aboutClass, first: 2 * time.Minute, most: 30 * time.Minute},
	"UserDataSizeLimitExceeded":      {scope: aboutClass, first: 2 * time.Minute, most: 30 * time.Minute},
	// A new instance profile or launch template is not known everywhere at once.
	"InstanceProfileNameInvalid": {scope: aboutClass, first: 2 * time.Minute, most: 30 * time.Minute, patience: failingGrace},
	"LaunchTemplateNotFound":     {scope: aboutClass, first: time.Minute, most: 30 * time.Minute, patience: failingGrace},
}

// known returns the reason if there is a cause for it, so that metrics have few labels, and LaunchFailed otherwise.
func known(reason string) string {
	if _, ok := causes[reason]; ok {
		return reason
	}
	return v1alpha1.RefusalLaunchFailed
}
