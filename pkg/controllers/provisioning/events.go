package provisioning

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

const (
	// sameReason is the shortest time between two events about a pod with the same reason and different messages.
	sameReason = time.Minute
	// eventsPerSecond limits the events about all pods. Each event is a request, like a nomination and a new NodeClaim, and the API server queues requests
	// of one user. After a burst, some pods get the event about their node a few plans later, or never because they are bound by then.
	eventsPerSecond = 10
	// eventsAtOnce is how many events are recorded after a quiet period.
	eventsAtOnce = 100
	// maxNominated is the largest number of pods with a place in a plan that are told of it. In a larger burst, pods wait for the API server.
	maxNominated = 100
)

// report is the latest event about a pending pod.
type report struct {
	reason  planner.Reason
	message string
	at      time.Time
}

// recordEvents records an event on each pending pod that has no room or has a place to wait for, if the event is new and the limit allows it. Pods
// without room come first. It records none on running pods: their machine's events are recorded elsewhere.
func (c *Controller) recordEvents(view *snapshot.View, plan planner.Plan, displaced displaced) {
	// Pods that already have an event leave the limit to those that have none.
	apart := max(sameReason, time.Duration(len(view.Pods)+len(view.Postponed))*time.Second/eventsPerSecond)
	for _, pod := range view.Waiting() {
		if _, told := c.reported[pod.UID]; told {
			continue
		}
		if _, err := facts.ThroughputOf(pod); err != nil {
			c.tell(pod, corev1.EventTypeWarning, throughputIgnored, plain.Shorten(err.Error(), plain.MaxNote), apart)
		}
		if _, err := facts.MembershipOf(pod); err != nil {
			c.tell(pod, corev1.EventTypeWarning, groupIgnored, plain.Shorten(err.Error(), plain.MaxNote), apart)
		} else if group := view.GroupOf(pod); group != nil && group.Differ {
			c.tell(pod, corev1.EventTypeWarning, groupMinimumsDiffer, plain.Shorten(group.String(), plain.MaxNote), apart)
		}
	}
	for _, u := range plan.Unplaced {
		c.tell(view.Pods[u.Pod], corev1.EventTypeWarning, u.Reason, plain.Shorten(u.Message, plain.MaxNote), apart)
	}
	c.recordGroups(view, plan, apart)
	for _, pod := range view.Postponed {
		c.tell(pod, corev1.EventTypeNormal, planner.ReasonNextRound, planner.NextRound.Message, apart)
	}
	for i, l := range plan.Launches {
		if displaced.waits[i] {
			for _, name := range l.Pods {
				c.tell(view.Pods[name], corev1.EventTypeNormal, placeTaken, placeTakenMessage, apart)
			}
		}
	}
	placed := 0
	for _, p := range plan.Placements {
		placed += len(p.Pods)
	}
	if placed > maxNominated {
		return
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

// throughputIgnored is the reason of the event on a pod whose throughput does not count. A pod gets it once, before other events, and is planned without it.
const throughputIgnored planner.Reason = "ThroughputIgnored"

// groupIgnored is the reason of the event on a pod whose group does not count, and groupMinimumsDiffer that of the event on the pods of a group that state different
// minimums. A pod gets them once, before other events.
const groupIgnored, groupMinimumsDiffer planner.Reason = "GroupIgnored", "GroupMinimumsDiffer"

// tell records an event about a pending pod, unless the latest one is equal, or has the same reason and is younger than apart. Beyond the limit it
// records nothing, and the next plan tries again. Pods that the scheduler has not tried yet may not need anything, so they get none.
func (c *Controller) tell(pod *corev1.Pod, kind string, reason planner.Reason, message string, apart time.Duration) {
	if pod == nil || pod.Spec.NodeName != "" || facts.Untried(pod) || facts.IsVirtual(pod) {
		return
	}
	last, now := c.reported[pod.UID], c.Clock.Now()
	if last.reason == reason && (last.message == message || now.Sub(last.at) < apart) || !c.events.AllowN(now, 1) {
		return
	}
	c.reported[pod.UID] = report{reason, message, now}
	c.Recorder.Eventf(pod, nil, kind, string(reason), "Plan", "%s", message)
}

// recordGroups records an event on each PodGroup without a place, if the event is new and the limit allows it.
func (c *Controller) recordGroups(view *snapshot.View, plan planner.Plan, apart time.Duration) {
	now, told := c.Clock.Now(), map[types.UID]report{}
	for _, u := range plan.Unplaced {
		if u.Reason != planner.ReasonGroup {
			continue
		}
		group, is := view.PodGroupOf(view.Pods[u.Pod])
		if _, done := told[group.UID]; !is || done {
			continue
		}
		message, last := plain.Shorten(u.Message, plain.MaxNote), c.groups[group.UID]
		if last.message != message && now.Sub(last.at) >= apart && c.events.AllowN(now, 1) {
			last = report{u.Reason, message, now}
			c.Recorder.Eventf(group.Reference(), nil, corev1.EventTypeWarning, string(u.Reason), "Plan", "%s", message)
		}
		told[group.UID] = last
	}
	c.groups = told
}

// recordOddBuffers records an event on each CapacityBuffer for which no capacity is kept free, once for each reason.
func (c *Controller) recordOddBuffers(odd []karpenter.OddBuffer) {
	told := make(map[karpenter.OddBuffer]bool, len(odd))
	for _, b := range odd {
		if told[b] = c.odd[b] || c.events.AllowN(c.Clock.Now(), 1); told[b] && !c.odd[b] {
			c.Recorder.Eventf(b.Reference(), nil, corev1.EventTypeWarning, "Unreadable", "Plan", "%s",
				plain.Shorten("No capacity is kept free for it, because what it refers to cannot be read: "+b.Why, plain.MaxNote))
		}
	}
	c.odd = told
}
