// Package breaker decides whether a pool may launch machines. It stops launches while the pool's machines fail to start or to expose their replicas.
// The package has no clock and no client.
package breaker

import (
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// Reasons of the condition ReplicasHealthy.
const (
	ReasonReplicasHealthy = "ReplicasHealthy"
	ReasonReplicasMissing = "ReplicasMissing"
	ReasonProbing         = "Probing"
)

// Next returns the condition ReplicasHealthy of a pool. timeout is how long a machine may take to start.
//
//   - It becomes False when a machine breaks. The pool then launches nothing.
//   - It becomes Unknown after timeout. The pool may then launch one machine to test.
//   - It becomes True when that machine starts, and False when it breaks. It also becomes True if it has been Unknown for [lifecycle.ProbeRetries] times timeout and no
//     machine is starting.
//
// Machines that broke before the last change do not count, however long they are kept.
func Next(before *status.Condition, machines []records.Machine, now time.Time, timeout time.Duration) status.Condition {
	if before == nil {
		before = &status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionTrue, Reason: ReasonReplicasHealthy}
	}
	changed := before.LastTransitionTime.Time
	found := survey(machines, changed, now, timeout)
	// A transition time more than timeout in the future comes from a clock that was ahead. No event would be later than it.
	ahead := changed.After(now.Add(timeout))
	fresh := found.fresh || ahead && len(found.broken) > 0
	healthy := func(s metav1.ConditionStatus, reason, message string) status.Condition {
		return status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: s, Reason: reason, Message: message}
	}
	open := healthy(metav1.ConditionFalse, ReasonReplicasMissing, fmt.Sprintf(
		"machines have been up for over %s without starting: %s; see that they join the cluster, that the device plugin or DRA driver runs on them and that their startup taints go. One node is tried again after %s",
		timeout, words.Named(found.broken, shown), now.Add(timeout).UTC().Format(time.RFC3339)))
	closed := healthy(metav1.ConditionTrue, ReasonReplicasHealthy, "")
	switch before.Status {
	case metav1.ConditionTrue:
		if fresh {
			return open
		}
		return closed
	case metav1.ConditionUnknown:
		quiet := !found.starting && !now.Before(changed.Add(lifecycle.ProbeRetries*timeout))
		switch {
		case fresh:
			return open
		case found.mended, ahead, quiet:
			return closed
		}
	case metav1.ConditionFalse:
		switch {
		case found.mended:
			return closed
		case ahead, !now.Before(changed.Add(timeout)):
			return healthy(metav1.ConditionUnknown, ReasonProbing,
				"one node may be launched to see whether nodes of this pool start and expose their replicas again")
		}
	}
	return *before
}

// shown is the largest number of broken machines that a message names. The API server rejects a condition with a message of more than 32,768
// characters, and then the pool would continue to launch.
const shown = 10

// findings describe the machines of a pool.
type findings struct {
	// broken has the names of the broken machines, and what each of them lacks.
	broken []string
	// fresh reports whether a machine has broken since the last change. mended reports whether a machine that was launched or has started since then works,
	// including one that was only slow. starting reports whether a machine is starting.
	fresh, mended, starting bool
}

func survey(machines []records.Machine, changed, now time.Time, timeout time.Duration) findings {
	var f findings
	for i := range machines {
		m := &machines[i]
		switch {
		case m.Broken(now, timeout):
			f.broken = append(f.broken, describeBroken(m))
			f.fresh = f.fresh || m.Fresh(changed, now, timeout)
		case m.Deleting():
		case !m.Started():
			f.starting = true
		default:
			later := !m.Claim.CreationTimestamp.Time.Before(changed.Truncate(time.Second))
			f.mended = f.mended || later || startedSince(m, changed)
		}
	}
	return f
}

// startedSince reports whether the NodeClaim says that the machine was initialized at that time or later.
func startedSince(m *records.Machine, at time.Time) bool {
	started := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized)
	return started.IsTrue() && !started.LastTransitionTime.Time.Before(at.Truncate(time.Second))
}

// describeBroken returns the name of a broken machine and a description of what it lacks.
func describeBroken(m *records.Machine) string {
	switch m.State() {
	case lifecycle.Registered:
	case lifecycle.NodeMissing:
		return m.Claim.Name + " (has lost its Node)"
	case lifecycle.Initializing:
		return m.Node.Name + " (" + records.Uninitialized(m) + ")"
	default:
		return m.Claim.Name + " (has not registered)"
	}
	return fmt.Sprintf("%s (%d of %d %s)", m.Node.Name, m.Exposed(), m.Promise.Replicas(), m.Promise.Resource)
}
