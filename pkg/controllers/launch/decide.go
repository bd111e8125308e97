package launch

import (
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/snapshot"
)

type verdict int

const (
	// wait means that the cloud has not answered yet.
	wait verdict = iota
	// launched means that the machine was launched.
	launched
	// hung means that the cloud does not launch the machine, so Karve deletes the NodeClaim.
	hung
	// refused means that Karpenter itself deletes the NodeClaim.
	refused
	// leaving means that the machine was launched and is being deleted.
	leaving
)

// decision is the state of a NodeClaim.
type decision struct {
	verdict verdict
	// again is when to check again, for wait.
	again time.Duration
	// reason and message explain hung and refused. The reason is "" if it is unknown so far.
	reason, message string
	// held reports whether the NodeClaim blocked Karpenter for a long time.
	held bool
}

// decide returns the state of a NodeClaim.
func decide(claim *karpv1.NodeClaim, now time.Time, timeout time.Duration) decision {
	condition := snapshot.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	switch {
	case condition.IsTrue() && !claim.DeletionTimestamp.IsZero():
		return decision{verdict: leaving}
	case condition.IsTrue():
		return decision{verdict: launched}
	}
	limit, d := timeout, decision{
		verdict: hung, reason: v1alpha1.RefusalSilent,
		message: fmt.Sprintf("NodeClaim %s has no result within %s: see that Karpenter runs, and that the cloud answers it", claim.Name, timeout),
	}
	hasReason := reported(claim) != nil
	if hasReason {
		d.reason = known(condition.Reason)
		d.message = fmt.Sprintf("NodeClaim %s could not be launched: %s: %s", claim.Name, condition.Reason, condition.Message)
		if d.reason == v1alpha1.RefusalLaunchFailed {
			d.message += "; Karpenter's log has the error"
		}
		limit = min(timeout, causes[d.reason].Patience)
	}
	if !claim.DeletionTimestamp.IsZero() {
		d.verdict = refused
		if !hasReason {
			d.reason, d.message = "", fmt.Sprintf("NodeClaim %s was given up before it was launched; its events say why", claim.Name)
		}
		return d
	}
	age := now.Sub(claim.CreationTimestamp.Time)
	if left := limit - age; left > 0 {
		return decision{verdict: wait, again: left}
	}
	d.held = age >= cloud.FailingGrace
	return d
}

// reported returns the condition in which Karpenter reports that the launch of a NodeClaim failed. It returns nil if it has not, or if the NodeClaim was launched.
func reported(claim *karpv1.NodeClaim) *status.Condition {
	c := snapshot.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	if c == nil || c.IsTrue() || c.Reason == "AwaitingReconciliation" {
		return nil
	}
	return c
}
