package pool

import (
	"fmt"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
)

// Reasons of the condition ReplicasHealthy.
const (
	reasonReplicasHealthy = "ReplicasHealthy"
	reasonReplicasMissing = "ReplicasMissing"
	reasonProbing         = "Probing"
)

// breaker says whether the pool's machines expose the replicas that they promised. A machine that does not within its time opens it: nothing is launched
// (False). After retry one machine may be launched to see (Unknown), and its replicas close it (True).
func breaker(before *status.Condition, machines []snapshot.Machine, now time.Time, timeout, retry time.Duration) status.Condition {
	if before == nil {
		before = &status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionTrue, Reason: reasonReplicasHealthy}
	}
	broken, fresh, mended := survey(machines, before.LastTransitionTime.Time, now, timeout)
	// A change that lies further ahead than it is waited for was written by a clock that was ahead: nothing would be later.
	ahead := before.LastTransitionTime.After(now.Add(retry))
	open := func() status.Condition {
		return condition(v1alpha1.ConditionReplicasHealthy, metav1.ConditionFalse, reasonReplicasMissing, fmt.Sprintf(
			"machines have been up for over %s without their replicas: %s; see that they join the cluster and that the device plugin runs on them. One node is tried again after %s",
			timeout, strings.Join(broken, ", "), now.Add(retry).UTC().Format(time.RFC3339)))
	}
	closed := condition(v1alpha1.ConditionReplicasHealthy, metav1.ConditionTrue, reasonReplicasHealthy, "")
	switch before.Status {
	case metav1.ConditionTrue:
		if len(broken) > 0 {
			return open()
		}
		return closed
	case metav1.ConditionUnknown:
		switch {
		case fresh, ahead && len(broken) > 0:
			return open()
		case ahead:
			return closed
		}
	case metav1.ConditionFalse:
		if !mended && (ahead || !now.Before(before.LastTransitionTime.Add(retry))) {
			return condition(v1alpha1.ConditionReplicasHealthy, metav1.ConditionUnknown, reasonProbing,
				"one node may be launched to see whether nodes of this pool expose their replicas again")
		}
	}
	if mended {
		return closed
	}
	return *before
}

// survey names the machines that are broken. Fresh says that one has broken since the last change, mended that one works which was launched or has started after it: also
// one that was only slow.
func survey(machines []snapshot.Machine, changed, now time.Time, timeout time.Duration) (broken []string, fresh, mended bool) {
	for i := range machines {
		m := &machines[i]
		// Times in the API are whole seconds, and the claim that the change lets through is made at once.
		later := !m.Claim.CreationTimestamp.Time.Before(changed.Truncate(time.Second))
		if since, ok := m.BrokenSince(timeout); ok && !now.Before(since) {
			broken = append(broken, missing(m))
			// When it broke tells a new one where the clocks of the API server and ours do not agree.
			fresh = fresh || later || since.After(changed)
		}
		mended = mended || (later || startedSince(m, changed)) && m.Node != nil && !m.AwaitsReplicas()
	}
	return broken, fresh, mended
}

// startedSince says that the machine has started at that time or later, by its claim.
func startedSince(m *snapshot.Machine, at time.Time) bool {
	started := snapshot.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized)
	return started.IsTrue() && !started.LastTransitionTime.Time.Before(at.Truncate(time.Second))
}

// missing says what a broken machine lacks.
func missing(m *snapshot.Machine) string {
	if !m.Registered() {
		return m.Claim.Name + " (has not registered)"
	}
	return fmt.Sprintf("%s (%d of %d %s)", m.Node.Name, m.Exposed(), m.Promise.Replicas(), m.Promise.Resource)
}

func condition(conditionType string, s metav1.ConditionStatus, reason, message string) status.Condition {
	return status.Condition{Type: conditionType, Status: s, Reason: reason, Message: message}
}
