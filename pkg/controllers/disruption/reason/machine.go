package reason

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

// Machine is one machine in one pass of the controller. Nothing of it outlives the pass: what the controller remembers of the machine is copied into it.
type Machine struct {
	*snapshot.Machine
	// NodePool is never nil.
	NodePool *Pool

	// Observed of the cluster, and not changed.

	// Wanted says that waiting pods are planned onto its Node, Headroom that its free replicas are headroom. Headroom keeps idle machines, and no others.
	Wanted, Headroom bool
	// Drift is how the machine differs from one that would be launched today; nil when it does not.
	Drift *drift.Drift
	// Health is the case of a machine that is unhealthy; nil for others.
	Health *repair.Case

	// Judged with what the controller remembers, before anything is decided.

	// Saving is why the mark of a machine that is marked as underutilized stands; nil where it falls and where there is none.
	Saving *Candidate
	// Steady says that the machine has been a candidate for the settle time: objects that are changed together are not changed at once.
	Steady bool
	// Proposed says that it has been part of a step to a cheaper layout for the settle time.
	Proposed bool
	// KeptInLayout says what keeps a machine that a cheaper layout would do without; "" when nothing does.
	KeptInLayout string
	// Surplus says that new pods are steered away from it, since the cheapest layout does without it.
	Surplus bool

	// Candidate is why the machine is to be replaced; nil when it is not. A decision to take a step to a cheaper layout sets it.
	Candidate *Candidate
}

// Pool is what the reasons know of a NodePool in one pass. Of a NodePool that is gone only the name is known.
type Pool struct {
	Name string
	// IdleAfter is how long its machines may be idle; nil where they may be idle for ever.
	IdleAfter *time.Duration
	// KeepsIdle says why its idle machines stay; "" where they do not.
	KeepsIdle string
	// MovesPods says that pods may be moved so that the machines cost less.
	MovesPods bool
	// Budgets are how many of its machines may be disrupted at once, by the reasons that disruption budgets know; nil where the NodePool is gone.
	Budgets map[karpv1.DisruptionReason]int
	// DrainBounded says that a drain ends after a time, whatever the pods say.
	DrainBounded bool
	// Unready says that it cannot be told at present whether its machines have drifted.
	Unready bool
	// Closed says why nothing is launched for it at present; "" when something is.
	Closed string
	// Launching says that machines of it are on their way or about to be launched.
	Launching bool
	// HeadroomComing says that part of its headroom is on its way. Until it is there no idle machine goes, which may be that part now.
	HeadroomComing bool
}

// Idle reports whether the machine holds nothing that counts. Pods without a replica do not count where pods may be moved.
func (m *Machine) Idle() bool { return m.Empty() || m.NodePool.MovesPods && m.Unused() }

// needed reports whether an idle machine is needed, for waiting pods or for headroom.
func (m *Machine) needed() bool { return m.Wanted || m.Headroom || m.NodePool.HeadroomComing }
