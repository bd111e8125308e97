package rollout

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

func (d *decision) report() {
	accepted := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Accepted"}
	if b := d.refused; b != nil && b.Spec {
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, b.Reason, b.Message
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Pinned"}
	if d.status.Replaced == nil && d.lost != nil {
		d.fault, d.unready = d.withLost(d.fault), d.lost
	}
	if d.status.Replaced != nil && d.unready == nil {
		d.unready = &Fault{"Pinning", d.className() + " is being pinned to " + d.status.Current.Release}
	}
	if d.unready != nil {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, d.unready.Reason, d.unready.Message
	}
	progressing := metav1.Condition{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionTrue, Reason: string(d.status.Step), Message: d.note}
	if d.status.Step == v1alpha1.StepPending || d.status.Step == v1alpha1.StepSettled {
		progressing.Status = metav1.ConditionFalse
	}
	degraded := metav1.Condition{Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionFalse, Reason: "AsWanted"}
	if d.fault != nil {
		degraded.Status, degraded.Reason, degraded.Message = metav1.ConditionTrue, d.fault.Reason, d.fault.Message
	}
	for _, c := range []metav1.Condition{accepted, ready, progressing, degraded} {
		c.ObservedGeneration, c.LastTransitionTime = d.rollout.Generation, metav1.NewTime(d.seen.Now)
		meta.SetStatusCondition(&d.status.Conditions, c)
	}
}
