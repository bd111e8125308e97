package reason

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/records"
)

// Machine is a machine in one round of decisions.
type Machine struct {
	*records.Machine
	// NodePool is never nil.
	NodePool *Pool

	// Wanted reports whether the plan places pending pods on its Node. Headroom reports whether its free replicas are headroom, which keeps the machine if
	// it is idle.
	Wanted, Headroom bool
	// Drift is how the machine has drifted, or nil if it has not.
	Drift *drift.Drift
	// Health is the diagnosis of an unhealthy machine, or nil for others.
	Health *repair.Case

	Remembered

	// Candidate is why the machine should be replaced, or nil if it should not. Machines that only a new step to a cheaper layout removes have none.
	Candidate *Candidate
}

// Remembered is what is known about a machine from earlier rounds.
type Remembered struct {
	// Saving is why the mark of an underutilized machine stays. It is nil if the mark should be removed, or if there is no mark.
	Saving *Candidate
	// Steady reports whether the machine has been a candidate for the settle time, so that Karve does not react while several objects are being changed.
	Steady bool
	// Proposed reports whether the machine has been part of a step to a cheaper layout for the settle time.
	Proposed bool
	// KeptInLayout is what keeps a machine that a cheaper layout would remove. It is "" if nothing does.
	KeptInLayout string
	// Surplus reports whether new pods are steered away from the machine, because the cheapest layout does not need it.
	Surplus bool
}

// Pool is what reasons know about a NodePool in one round. Only the name is set if the NodePool no longer exists.
type Pool struct {
	Name string
	// IdleAfter is how long its machines may be idle. It is nil if there is no limit.
	IdleAfter *time.Duration
	// KeepsIdle is why its idle machines stay. It is "" if they do not.
	KeepsIdle string
	// MovesPods reports whether the policies of the NodePool and its GPUNodeClass allow moving pods to reduce the cost. Then a machine with foreign pods counts as
	// idle, underutilized machines may keep their marks, and new pods stay steered away from a machine for the settle time after it ceased to be surplus.
	MovesPods bool
	// Budgets is how many of its machines may be disrupted at the same time, by the reasons of disruption budgets. It is nil if the NodePool no longer exists.
	Budgets map[karpv1.DisruptionReason]int
	// DrainBounded reports whether a drain has a time limit.
	DrainBounded bool
	// Unready reports whether drift of its machines is unknown for now.
	Unready bool
	// Closed is why nothing is launched for it now. It is "" if machines may be launched.
	Closed string
	// Launching reports whether machines of the pool are starting or about to be launched.
	Launching bool
	// HeadroomComing reports whether part of its headroom is still starting. Until it has started, idle machines stay, because they may serve as that
	// part.
	HeadroomComing bool
}

// Idle reports whether the machine holds no pods that count.
func (m *Machine) Idle() bool {
	return m.Empty() || m.NodePool.MovesPods && m.NoReplicasHeld()
}

// needed reports whether an idle machine is needed for pending pods or for headroom.
func (m *Machine) needed() bool { return m.Wanted || m.Headroom || m.NodePool.HeadroomComing }
