package provisioning

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/wording"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// Two events about a pod that have the same reason and other messages are at least sameReason apart, and sameReasonEach times the pods without a place if that
// is longer: so these events are at most ten a second, however many pods wait.
const (
	sameReason     = time.Minute
	sameReasonEach = 100 * time.Millisecond
)

// report is the latest event about a pending pod.
type report struct {
	reason  planner.Reason
	message string
	at      time.Time
}

// recordEvents records an event on each pending pod that has no room or has a node to wait for, if that is new. It records none on running pods: the events about
// their machine are recorded elsewhere.
func (c *Controller) recordEvents(view *snapshot.View, plan planner.Plan) {
	apart := max(sameReason, time.Duration(len(plan.Unplaced))*sameReasonEach)
	for _, u := range plan.Unplaced {
		c.tell(view.Pods[u.Pod], corev1.EventTypeWarning, u.Reason, wording.Shorten(u.Message, wording.MaxNote), apart)
	}
	for _, pod := range view.Postponed {
		c.tell(pod, corev1.EventTypeNormal, planner.ReasonNextRound, planner.NextRound.Message, apart)
	}
	for _, p := range plan.Placements {
		message := "waits for " + view.Nodes[p.Node].Name
		for _, name := range p.Pods {
			c.tell(view.Pods[name], corev1.EventTypeNormal, nominated, message, apart)
		}
	}
}

// nominated is the reason of the event on a pod that has a node to wait for.
const nominated planner.Reason = "Nominated"

// tell records an event about a pending pod, unless the latest one is equal, or has the same reason and is younger than apart.
func (c *Controller) tell(pod *corev1.Pod, kind string, reason planner.Reason, message string, apart time.Duration) {
	if pod == nil || pod.Spec.NodeName != "" {
		return
	}
	last, now := c.reported[pod.UID], c.Clock.Now()
	if last.reason == reason && (last.message == message || now.Sub(last.at) < apart) {
		return
	}
	c.reported[pod.UID] = report{reason, message, now}
	c.Recorder.Eventf(pod, nil, kind, string(reason), "Plan", "%s", message)
}
