package disruption

import (
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
)

// command is the next step of a machine.
type command struct {
	step    step
	machine *reason.Machine
	// reason is what keeps a machine that stays, or the reason for replacing it.
	reason string
	// pods are the pods to evict now.
	pods []*corev1.Pod
}

// step is an action on a machine.
type step string

// Steps of an idle machine.
const (
	// markIdle writes to the Node the time at which it became idle.
	markIdle step = "MarkIdle"
	// keep removes from the Node the marks of an idle or disrupted machine.
	keep step = "Keep"
	// blocked reports why an idle machine stays.
	blocked step = "Blocked"
)

// Steps of a machine that is replaced.
const (
	// replace marks the NodeClaim as being replaced.
	replace step = "Replace"
	// hold removes the taint from the Node, because its pods no longer have room elsewhere.
	hold step = "Hold"
	// stop removes the mark, because there is no longer a reason to replace the machine.
	stop step = "Stop"
	// giveUp removes the mark because the pods found no room in time. The machine is not marked again for a while.
	giveUp step = "GiveUp"
	// stay reports why a candidate is not replaced now.
	stay step = "Stay"
	// handOver evicts some of the pods.
	handOver step = "HandOver"
	// force deletes the NodeClaim of a machine whose kubelet does not respond, and ends its drain immediately. Its pods cannot be stopped through the
	// kubelet, so waiting for them would only cost money.
	force step = "Force"
)

// Steps of idle and of replaced machines.
const (
	// taint keeps new pods off the Node before the NodeClaim is deleted.
	taint step = "Taint"
	// remove deletes the NodeClaim after a check with data from the API server.
	remove step = "Remove"
)

// marks reports whether the step adds or removes the mark.
func (s step) marks() bool { return s == replace || s == stop || s == giveUp }

// changesNode reports whether the step only changes the Node of its machine. Such steps do not depend on each other.
func (s step) changesNode() bool { return s == markIdle || s == keep || s == hold || s == taint }
