package provisioning

import (
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/wording"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// recordEvents records an event on each pending pod that has no room or has a node to wait for, if that is new. It records none on running pods: the events about
// their machine are recorded elsewhere.
func (c *Controller) recordEvents(view *snapshot.View, plan planner.Plan) {
	for _, u := range plan.Unplaced {
		pod := view.Pods[u.Pod]
		if pod == nil || pod.Spec.NodeName != "" || c.reported[pod.UID] == u.Reason {
			continue
		}
		c.reported[pod.UID] = u.Reason
		c.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, string(u.Reason), "Plan", "%s", wording.Shorten(u.Message, wording.MaxNote))
	}
	for _, pod := range view.Postponed {
		if c.reported[pod.UID] != planner.ReasonNextRound {
			c.reported[pod.UID] = planner.ReasonNextRound
			c.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, string(planner.ReasonNextRound), "Plan", "%s", planner.NextRound.Message)
		}
	}
	for _, p := range plan.Placements {
		for _, name := range p.Pods {
			c.recordNomination(view, name, view.Nodes[p.Node].Name)
		}
	}
}

// nominated is the reason of the event on a pod that has a node to wait for.
const nominated planner.Reason = "Nominated"

func (c *Controller) recordNomination(view *snapshot.View, name, node string) {
	pod := view.Pods[name]
	if pod == nil || pod.Spec.NodeName != "" || c.reported[pod.UID] == nominated {
		return
	}
	c.reported[pod.UID] = nominated
	c.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, string(nominated), "Plan", "waits for %s", node)
}
