// Package rollout decides how a new machine image for GPU nodes is tried, promoted and taken back. It is pure: what was read goes in, the new status and
// what is to be done come out. The state is the status of the GPUImageRollout, so a restart goes on where it stopped.
package rollout

import (
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Seen is what was read for a decision.
type Seen struct {
	Now time.Time
	// Blocked is why the EC2NodeClass is left alone altogether.
	Blocked *Blocked
	Class   Class
	// Architectures are those that NodePools of ours can launch with the class, sorted: amd64, arm64.
	Architectures []string
	// Wanted is the image that spec.image means at present; nil with WantedProblem where it could not be found.
	Wanted        *v1alpha1.GPUImage
	WantedProblem *Problem
	// Missing are the ids of images of the status that AWS does not have any more. Those that could not be asked for are not among them.
	Missing []string
	// NoPlace is why no canary can be launched, by architecture; none where one can.
	NoPlace map[string]Problem
	Canary  Canary
	// Leftovers says that objects of another canary than that of the status are still there.
	Leftovers bool
	Nodes     Nodes
}

// Problem is something that has to be mended, in the words of a condition.
type Problem struct {
	Reason, Message string
}

// Blocked is why an EC2NodeClass is left alone.
type Blocked struct {
	Problem
	// Spec says that the GPUImageRollout itself cannot be used as it is.
	Spec bool
	// Gone says that there is no EC2NodeClass, so that one of the same name is another.
	Gone bool
}

// Class is the EC2NodeClass.
type Class struct {
	// Rollout is the name of the GPUImageRollout that pinned it, as its annotation says.
	Rollout string
	// Pin are the ids of the images that it is pinned to, sorted; nil when its terms are not all ids.
	Pin []string
	// Resolves is the GPU image that Karpenter resolves for it, for the architectures; nil with ResolvesProblem.
	Resolves        *v1alpha1.GPUImage
	ResolvesProblem *Problem
}

// Canary is what was seen of the canary node of the status.
type Canary struct {
	// ClassReady says that its EC2NodeClass is ready; ClassMessage why not.
	ClassReady   bool
	ClassMessage string
	// Claimed says that its NodeClaim is there, and not being deleted.
	Claimed bool
	// LaunchError is why its NodeClaim was not launched, as far as it says.
	LaunchError string
	// Launched is when it was; nil before.
	Launched *time.Time
	// Image is the id of the image that it runs; empty while that is not known.
	Image string
	// Node is the name of its Node; empty before it has registered.
	Node string
	// Promised and Exposed are replicas of Resource.
	Resource          string
	Promised, Exposed int64
	// Unwell is why its Node is not well; empty when it is.
	Unwell string
	// PoolUnwell is why other machines of the same pool cannot be relied on, so that nothing can be told about the image.
	PoolUnwell   string
	Check        Check
	CheckMessage string
}

// Check is what has become of the pod that checks the canary's GPU.
type Check int

const (
	// CheckNone is before there is a pod.
	CheckNone Check = iota
	// CheckRunning is while it runs or is about to.
	CheckRunning
	// CheckPassed is when it has ended well.
	CheckPassed
	// CheckFailed is when it has ended otherwise.
	CheckFailed
	// CheckUnstartable is when its container cannot be made, which says nothing about the machine.
	CheckUnstartable
)

// Nodes are the machines of the EC2NodeClass, the canary aside.
type Nodes struct {
	// Total is how many there are, Updated how many of them run the current image.
	Total, Updated int64
	// Awaiting is how many of those have not exposed their replicas yet, Working how many have.
	Awaiting, Working int64
	// Broken are the names of those that have not in time.
	Broken []string
}

// Result is what is to be done: the status is written first, then the rest is done.
type Result struct {
	Status v1alpha1.GPUImageRolloutStatus
	// Pin says that the EC2NodeClass is to be pinned to the status's current image.
	Pin bool
	// Launch says that the canary's NodeClaim is to be made. It is said once: a claim that is not there later is gone.
	Launch bool
	// Check says that the pod that checks the canary's GPU is to be there.
	Check bool
	// Events are what to tell, in order.
	Events []Event
	// Again is when to look again at the latest.
	Again time.Duration
}

// Event is something that has happened.
type Event struct {
	Warning         bool
	Reason, Message string
}
