package cloud

import "time"

// Scope is how much a refusal of the cloud is about.
type Scope int

const (
	// AboutOfferings: each instance type that the claim named in each of its zones.
	AboutOfferings Scope = iota
	// AboutTypes: the instance types that the claim named, in all zones and at every capacity type.
	AboutTypes
	// AboutQuota: the instance types that the claim named, in all zones, at its capacity type.
	AboutQuota
	// AboutZones: everything in the zones that the claim named.
	AboutZones
	// AboutCapacityType: everything of the claim's capacity type.
	AboutCapacityType
	// AboutClass: everything of the cloud's node class, until it changes.
	AboutClass
	// AboutAccount: everything.
	AboutAccount
)

// Cause is what is to be done about a refusal for some reason.
type Cause struct {
	Scope Scope
	// First is how long it is left alone, which doubles with each refusal up to Most.
	First, Most time.Duration
	// Patience is how long Karpenter may go on trying while it tells this; 0 where it will not get better by trying.
	Patience time.Duration
}

// Times that causes share.
const (
	// FailingGrace is how long a claim whose launch reports an error may go on trying: long enough for a second try, and short enough that
	// stock Karpenter, which waits for it, is hardly held up.
	FailingGrace = 15 * time.Second
	// Pause and LongestPause bound how long launches wait after a failure that says nothing about what was asked for. Launches resume at most that long,
	// and a tenth, after the cloud has recovered.
	Pause        = 30 * time.Second
	LongestPause = 2 * time.Minute
	// UntilTimeout has a claim tried for as long as any claim may be: what it waits for holds up all of Karpenter anyway.
	UntilTimeout = time.Hour
)
