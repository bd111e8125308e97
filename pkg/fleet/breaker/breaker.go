// Package breaker decides whether a pool launches machines: not while those that it has do not start or do not expose their replicas. It is pure.
package breaker

import (
	"fmt"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot"
)

// Reasons of the condition ReplicasHealthy.
const (
	ReasonReplicasHealthy = "ReplicasHealthy"
	ReasonReplicasMissing = "ReplicasMissing"
	ReasonProbing         = "Probing"
)

// Next is the condition ReplicasHealthy of a pool, which says whether the pool's machines start and expose the replicas that they promised. A machine that does not within its time opens it: nothing is launched
// (False). After retry one machine may be launched to see (Unknown): it closes the breaker when it starts (True), and opens it when it breaks. Machines that were broken
// before count for nothing in that, however long they are kept; and a pool of which nothing has been asked for [lifecycle.ProbeRetries] times as long is closed too.
func Next(before *status.Condition, machines []snapshot.Machine, now time.Time, timeout, retry time.Duration) status.Condition {
	if before == nil {
		before = &status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionTrue, Reason: ReasonReplicasHealthy}
	}
	changed := before.LastTransitionTime.Time
	found := survey(machines, changed, now, timeout)
	// A change that lies further ahead than it is waited for was written by a clock that was ahead: nothing would be later.
	ahead := changed.After(now.Add(retry))
	fresh := found.fresh || ahead && len(found.broken) > 0
	healthy := func(s metav1.ConditionStatus, reason, message string) status.Condition {
		return status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: s, Reason: reason, Message: message}
	}
	open := healthy(metav1.ConditionFalse, ReasonReplicasMissing, fmt.Sprintf(
		"machines have been up for over %s without starting: %s; see that they join the cluster, that the device plugin runs on them and that their startup taints go. One node is tried again after %s",
		timeout, strings.Join(found.broken, ", "), now.Add(retry).UTC().Format(time.RFC3339)))
	closed := healthy(metav1.ConditionTrue, ReasonReplicasHealthy, "")
	switch before.Status {
	case metav1.ConditionTrue:
		if fresh {
			return open
		}
		return closed
	case metav1.ConditionUnknown:
		quiet := !found.starting && !now.Before(changed.Add(lifecycle.ProbeRetries*retry))
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
		case ahead, !now.Before(changed.Add(retry)):
			return healthy(metav1.ConditionUnknown, ReasonProbing,
				"one node may be launched to see whether nodes of this pool start and expose their replicas again")
		}
	}
	return *before
}

// findings are what a pool's machines tell of those to come.
type findings struct {
	// broken names the machines that are broken.
	broken []string
	// fresh says that one has broken since the last change, mended that one works which was launched or has started after it, also one that was only slow,
	// starting that one is on its way.
	fresh, mended, starting bool
}

func survey(machines []snapshot.Machine, changed, now time.Time, timeout time.Duration) findings {
	var f findings
	for i := range machines {
		m := &machines[i]
		switch {
		case m.Broken(now, timeout):
			f.broken = append(f.broken, missing(m))
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

// startedSince says that the machine has started at that time or later, by its claim.
func startedSince(m *snapshot.Machine, at time.Time) bool {
	started := snapshot.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized)
	return started.IsTrue() && !started.LastTransitionTime.Time.Before(at.Truncate(time.Second))
}

// missing says what a broken machine lacks.
func missing(m *snapshot.Machine) string {
	switch m.State() {
	case lifecycle.Registered:
	case lifecycle.NodeMissing:
		return m.Claim.Name + " (has lost its Node)"
	case lifecycle.Initializing:
		return m.Node.Name + " (" + snapshot.Uninitialized(m) + ")"
	default:
		return m.Claim.Name + " (has not registered)"
	}
	return fmt.Sprintf("%s (%d of %d %s)", m.Node.Name, m.Exposed(), m.Promise.Replicas(), m.Promise.Resource)
}
