package cloud

import "time"

// Scope is what a refusal of the cloud applies to.
type Scope int

const (
	// AboutOfferings means each instance type of the NodeClaim in each of its zones.
	AboutOfferings Scope = iota
	// AboutTypes means the instance types of the NodeClaim, in all zones and capacity types.
	AboutTypes
	// AboutQuota means the instance types of the NodeClaim in all zones, for its capacity type.
	AboutQuota
	// AboutZones means everything in the zones of the NodeClaim.
	AboutZones
	// AboutCapacityType means everything of the capacity type of the NodeClaim.
	AboutCapacityType
	// AboutClass means everything that uses the cloud's node class, until it changes.
	AboutClass
	// AboutAccount means everything.
	AboutAccount
)

// Cause describes how to handle a refusal.
type Cause struct {
	Scope Scope
	// First is how long launches in the scope are paused. It doubles with each refusal, up to Most.
	First, Most time.Duration
	// Patience is how long Karpenter may retry the launch. It is 0 if retries do not help.
	Patience time.Duration
}

// Times that several causes use.
const (
	// FailingGrace is how long a NodeClaim may be retried while its launch reports an error. It is long enough for a second try. It is short because
	// Karpenter waits for the NodeClaim.
	FailingGrace = 15 * time.Second
	// Pause and LongestPause are the first and the longest pause after a failure that does not depend on what was requested. Launches resume at most
	// LongestPause and a tenth of it after the cloud has recovered.
	Pause        = 30 * time.Second
	LongestPause = 2 * time.Minute
	// UntilTimeout lets a NodeClaim be retried as long as any other, because such a failure affects all NodeClaims of Karpenter anyway.
	UntilTimeout = time.Hour
)
