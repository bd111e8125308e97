// Package rollout decides how a new machine image for GPU nodes is tested, promoted and rolled back. It has no clock and no client: the input is an
// observation, and the output is the new status and what to do. The state is the status of the GPUImageRollout, so a restarted controller continues
// where the last one stopped.
package rollout

import (
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Seen is the input of a decision.
type Seen struct {
	Now time.Time
	// Blocked is why the node class is not changed at all.
	Blocked *Blocked
	Class   Class
	// Architectures are those that Karve's NodePools can launch with the class, sorted: amd64, arm64.
	Architectures []string
	// Wanted is the image to which spec.image currently refers. It is nil, and WantedFault is set, if the image was not found.
	Wanted      *v1alpha1.GPUImage
	WantedFault *Fault
	// Missing has the IDs of images in the status that no longer exist. It does not include an ID for which the cloud did not answer.
	Missing []string
	// NoPlace is why no canary can be launched, by architecture. It has no entry if one can.
	NoPlace map[string]Fault
	Canary  Canary
	// Leftovers reports whether objects of another canary than that of the status still exist.
	Leftovers bool
	Nodes     Nodes
}

// Fault is something to fix, as the reason and message of a condition.
type Fault struct {
	Reason, Message string
}

// Blocked is why a node class is not changed.
type Blocked struct {
	Fault
	// Spec reports whether the GPUImageRollout itself is invalid.
	Spec bool
	// Gone reports whether the node class does not exist. One created later with its name is a different one.
	Gone bool
}

// Class is the state of the node class.
type Class struct {
	// Rollout is the name of the GPUImageRollout that pinned it, from its annotation.
	Rollout string
	// Field is the path of the field that selects its images.
	Field string
	// Pin has the IDs of the images that it is pinned to, sorted. It is nil if not all terms are IDs.
	Pin []string
	// Resolves is the GPU image that Karpenter resolves for the architectures. It is nil, and ResolvesFault is set, if there is none.
	Resolves      *v1alpha1.GPUImage
	ResolvesFault *Fault
}

// Canary is the state of the canary node that the status names.
type Canary struct {
	// ClassReady reports whether its node class is ready. ClassMessage says why not.
	ClassReady   bool
	ClassMessage string
	// Claimed reports whether its NodeClaim exists and is not being deleted.
	Claimed bool
	// LaunchError is why its NodeClaim was not launched. It is empty if the NodeClaim does not report it.
	LaunchError string
	// Launched is when it was launched, and nil before.
	Launched *time.Time
	// Image is the ID of the image that it runs. It is empty if unknown.
	Image string
	// Node is the name of its Node. It is empty before the Node has registered.
	Node string
	// Promised and Exposed are numbers of replicas of Resource.
	Resource          string
	Promised, Exposed int64
	// Unwell is why its Node is unhealthy. It is empty if it is healthy.
	Unwell string
	// PoolUnwell is why other machines of the pool also fail, so that the canary proves nothing about the image. It is empty if they work.
	PoolUnwell   string
	Check        Check
	CheckMessage string
}

// Check is the state of the pod that checks the canary's GPU.
type Check int

const (
	// CheckNone means that there is no pod.
	CheckNone Check = iota
	// CheckRunning means that the pod runs or is about to.
	CheckRunning
	// CheckPassed means that the pod succeeded.
	CheckPassed
	// CheckFailed means that the pod failed.
	CheckFailed
	// CheckUnstartable means that its container cannot be created, which proves nothing about the machine.
	CheckUnstartable
)

// Nodes counts the machines of the node class, without the canary.
type Nodes struct {
	// Total is the number of machines. Updated is how many of them run the current image.
	Total, Updated int64
	// Awaiting is how many of the updated ones have not exposed their replicas yet. Working is how many have.
	Awaiting, Working int64
	// Broken has the names of those that did not expose them in time.
	Broken []string
}

// Result is what to do. The status is written first.
type Result struct {
	Status v1alpha1.GPUImageRolloutStatus
	// Pin reports whether to pin the node class to the current image of the status.
	Pin bool
	// Launch reports whether to create the canary's NodeClaim. It is true once only: if the NodeClaim is missing later, it was deleted.
	Launch bool
	// Check reports whether the pod that checks the canary's GPU should exist.
	Check bool
	// Events are the events to record, in order.
	Events []Event
	// Again is the longest time until the next decision.
	Again time.Duration
}

// Event is a Kubernetes event to record.
type Event struct {
	Warning         bool
	Reason, Message string
}
