package launch

import (
	"fmt"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot"
)

// failingGrace is how long a claim whose launch reports an error may go on trying: long enough for a second try, and short enough that
// stock Karpenter, which waits for it, is hardly held up.
const failingGrace = 15 * time.Second

type verdict int

const (
	// wait: the cloud has not answered; look again.
	wait verdict = iota
	// launched: the machine is made.
	launched
	// hung: the cloud does not make the machine; give the claim up.
	hung
	// refused: Karpenter has given the claim up itself.
	refused
)

// decide says what has become of a claim. again is when to look again, for wait.
func decide(claim *karpv1.NodeClaim, now time.Time, timeout time.Duration) (v verdict, message string, again time.Duration) {
	condition := snapshot.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	if condition.IsTrue() {
		return launched, "", 0
	}
	if !claim.DeletionTimestamp.IsZero() {
		return refused, fmt.Sprintf("NodeClaim %s was given up before it was launched; its events say why", claim.Name), 0
	}
	limit := timeout
	message = fmt.Sprintf("NodeClaim %s was not launched within %s and says nothing; see that Karpenter runs", claim.Name, timeout)
	if condition != nil && condition.Reason != "AwaitingReconciliation" {
		limit = min(timeout, failingGrace)
		message = fmt.Sprintf("NodeClaim %s could not be launched: %s: %s", claim.Name, condition.Reason, condition.Message)
	}
	if left := claim.CreationTimestamp.Add(limit).Sub(now); left > 0 {
		return wait, "", left
	}
	return hung, message, 0
}
