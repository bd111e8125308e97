package disruption

import (
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
)

// command is the next step of a machine.
type command struct {
	step    step
	machine *reason.Machine
	// reason is why: what keeps a machine that stays, or the word of the mark of one that is replaced.
	reason string
	// pods are those of the machine that are evicted now.
	pods []*corev1.Pod
}

// step is what is done to a machine next.
type step string

// Steps of an idle machine.
const (
	// markIdle writes to the Node since when it is idle.
	markIdle step = "MarkIdle"
	// keep removes from the Node what says that the machine is idle or about to go.
	keep step = "Keep"
	// blocked reports why an idle machine stays.
	blocked step = "Blocked"
)

// Steps of a machine that is replaced.
const (
	// replace marks the NodeClaim.
	replace step = "Replace"
	// hold removes the taint from the Node: the pods have lost their new place, and wait for another.
	hold step = "Hold"
	// stop removes the mark: the machine stays.
	stop step = "Stop"
	// giveUp removes the mark because no new place has come, and for a while the machine is not marked again.
	giveUp step = "GiveUp"
	// stay reports why a candidate is not replaced at present.
	stay step = "Stay"
	// handOver evicts some of the pods.
	handOver step = "HandOver"
	// force deletes the NodeClaim of a machine whose kubelet does not answer for its pods any more, and has its drain end at once: its pods cannot be ended by
	// asking, so what they say only costs the machine's price.
	force step = "Force"
)

// Steps of both.
const (
	// taint keeps new pods off the Node before the NodeClaim is deleted.
	taint step = "Taint"
	// remove deletes the NodeClaim, after a live check.
	remove step = "Remove"
)

// marks reports whether the step changes the mark.
func (s step) marks() bool { return s == replace || s == stop || s == giveUp }
