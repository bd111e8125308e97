package launching

import (
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Verdict is what became of a launch.
type Verdict int

const (
	// Wait means that the cloud has not answered yet.
	Wait Verdict = iota
	// Launched means that the machine was launched.
	Launched
	// Hung means that the cloud does not launch the machine, so Karve deletes the NodeClaim.
	Hung
	// Refused means that Karpenter itself deletes the NodeClaim.
	Refused
	// Leaving means that the machine was launched and is being deleted.
	Leaving
)

// Decision is the state of a NodeClaim.
type Decision struct {
	Verdict Verdict
	// Again is when to check again, for Wait.
	Again time.Duration
	// Reason and Message explain Hung and Refused. The reason is "" if it is unknown so far.
	Reason, Message string
	// Held reports whether the NodeClaim blocked Karpenter for a long time.
	Held bool
}

// Decide returns the state of a NodeClaim.
func Decide(claim *karpv1.NodeClaim, now time.Time, timeout time.Duration) Decision {
	condition := facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	switch {
	case condition.IsTrue() && !claim.DeletionTimestamp.IsZero():
		return Decision{Verdict: Leaving}
	case condition.IsTrue():
		return Decision{Verdict: Launched}
	}
	limit, d := timeout, Decision{
		Verdict: Hung, Reason: v1alpha1.RefusalSilent,
		Message: fmt.Sprintf("NodeClaim %s has no result within %s: see that Karpenter runs, and that the cloud answers it", claim.Name, timeout),
	}
	hasReason := Reported(claim) != nil
	if hasReason {
		d.Reason = Known(condition.Reason)
		d.Message = fmt.Sprintf("NodeClaim %s could not be launched: %s: %s", claim.Name, condition.Reason, condition.Message)
		if d.Reason == v1alpha1.RefusalLaunchFailed {
			d.Message += "; Karpenter's log has the error"
		}
		cause, _ := causeOf(d.Reason)
		limit = min(timeout, cause.Patience)
	}
	if !claim.DeletionTimestamp.IsZero() {
		d.Verdict = Refused
		if !hasReason {
			d.Reason, d.Message = "", fmt.Sprintf("NodeClaim %s was given up before it was launched; its events say why", claim.Name)
		}
		return d
	}
	age := now.Sub(claim.CreationTimestamp.Time)
	if left := limit - age; left > 0 {
		return Decision{Verdict: Wait, Again: left}
	}
	d.Held = age >= cloud.FailingGrace
	return d
}

// Reported returns the condition in which Karpenter reports that the launch of a NodeClaim failed. It returns nil if it has not, or if the NodeClaim was launched.
func Reported(claim *karpv1.NodeClaim) *status.Condition {
	c := facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	if c == nil || c.IsTrue() || c.Reason == "AwaitingReconciliation" {
		return nil
	}
	return c
}
