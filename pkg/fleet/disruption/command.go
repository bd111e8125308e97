package disruption

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/plain"
)

// Command is the next step of a machine.
type Command struct {
	Step    Step
	Machine *reason.Machine
	// Candidate is why the machine is or should be replaced. It is nil for idle machines.
	Candidate *reason.Candidate
	// Reason is what keeps a machine that stays, or the reason for replacing it.
	Reason string
	// Pods are the pods to evict now, and Target is the name of the Node to which they move, or "" if it does not exist yet.
	Pods   []*corev1.Pod
	Target string
	// Event is the event about a machine that stays. It is nil if the event was reported before.
	Event *Event
}

// Event is an event about a Node.
type Event struct{ Reason, Note string }

// stays returns the event about a machine that stays.
func stays(c *Command) *Event {
	e := Event{Reason: "IdleButKept"}
	what := "idle since " + c.Machine.Node.Annotations[v1alpha1.IdleSinceAnnotation]
	if c.Step == Stay {
		e.Reason, what = string(c.Candidate.Reason)+"ButKept", c.Candidate.Message
	}
	e.Note = plain.Shorten(what+", and kept: "+c.Reason, plain.MaxNote)
	return &e
}

// Why returns the reason for marking a machine, for events.
func (c *Command) Why() string {
	if c.Candidate == nil || c.Reason == reason.Expiring {
		return reason.WhyExpires(c.Machine)
	}
	return c.Candidate.Message
}

// Step is an action on a machine.
type Step string

// Steps of an idle machine.
const (
	// MarkIdle writes to the Node the time at which it became idle.
	MarkIdle Step = "MarkIdle"
	// Keep removes from the Node the marks of an idle or disrupted machine.
	Keep Step = "Keep"
	// Blocked reports why an idle machine stays.
	Blocked Step = "Blocked"
)

// Steps of a machine that is replaced.
const (
	// Replace marks the NodeClaim as being replaced.
	Replace Step = "Replace"
	// Hold removes the taint from the Node, because its pods no longer have room elsewhere.
	Hold Step = "Hold"
	// Stop removes the mark, because there is no longer a reason to replace the machine.
	Stop Step = "Stop"
	// GiveUp removes the mark because the pods found no room in time. The machine is not marked again for a while.
	GiveUp Step = "GiveUp"
	// Stay reports why a candidate is not replaced now.
	Stay Step = "Stay"
	// HandOver evicts some of the pods.
	HandOver Step = "HandOver"
	// Force deletes the NodeClaim of a machine whose kubelet does not respond, and ends its drain immediately. Its pods cannot be stopped through the
	// kubelet, so waiting for them would only cost money.
	Force Step = "Force"
)

// Steps of idle and of replaced machines.
const (
	// Taint keeps new pods off the Node before the NodeClaim is deleted.
	Taint Step = "Taint"
	// Remove deletes the NodeClaim after a check with data from the API server.
	Remove Step = "Remove"
)

// Marks reports whether the step adds or removes the mark.
func (s Step) Marks() bool { return s == Replace || s == Stop || s == GiveUp }

// ChangesNode reports whether the step only changes the Node of its machine. Such steps do not depend on each other.
func (s Step) ChangesNode() bool { return s == MarkIdle || s == Keep || s == Hold || s == Taint }

// Reports reports whether the step changes nothing.
func (s Step) Reports() bool { return s == Blocked || s == Stay }

// EditNode makes the change of the step to the Node.
func (c *Command) EditNode(node *corev1.Node, now time.Time) {
	switch c.Step {
	case MarkIdle:
		annotate(node, v1alpha1.IdleSinceAnnotation, now)
	case Taint:
		annotate(node, v1alpha1.DisruptingSinceAnnotation, now)
		if !Tainted(node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
		}
	case Keep:
		if c.Reason == "" {
			delete(node.Annotations, v1alpha1.IdleSinceAnnotation)
		}
		untaint(node) // If something keeps the machine, it is still idle, and is deleted once nothing does.
	case Hold, Stop, GiveUp:
		ClearNode(node)
	case Blocked, Replace, Stay, HandOver, Force, Remove:
	}
}

// EditClaim makes the change of the step to the NodeClaim.
func (c *Command) EditClaim(claim *karpv1.NodeClaim, now time.Time) {
	switch c.Step {
	case Replace:
		setMark(claim, c.Reason, now)
	case Stop, GiveUp:
		if c.Step == GiveUp {
			failed := retention.Failures(c.Machine.Machine) + 1
			claim.Annotations[v1alpha1.ReplacementFailuresAnnotation] = strconv.Itoa(failed)
			claim.Annotations[v1alpha1.ReplaceAfterAnnotation] = now.Add(retention.Backoff(failed)).UTC().Format(time.RFC3339)
		}
		delete(claim.Annotations, v1alpha1.ReplacingAnnotation)
		delete(claim.Annotations, v1alpha1.ReplacingSinceAnnotation)
	case Force:
		claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] = now.UTC().Format(time.RFC3339)
		if c.Machine.Replacing() != reason.Unhealthy {
			setMark(claim, reason.Unhealthy, now)
		}
	case MarkIdle, Keep, Blocked, Hold, Stay, HandOver, Taint, Remove:
	}
}

func setMark(claim *karpv1.NodeClaim, word string, now time.Time) {
	claim.Annotations[v1alpha1.ReplacingAnnotation] = word
	claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = now.UTC().Format(time.RFC3339)
}

func annotate(node *corev1.Node, key string, now time.Time) {
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, now.UTC().Format(time.RFC3339))
}

// ClearNode removes from the Node the marks of an idle or disrupted machine.
func ClearNode(node *corev1.Node) {
	delete(node.Annotations, v1alpha1.IdleSinceAnnotation)
	untaint(node)
}

// untaint removes from the Node the marks of a disrupted machine.
func untaint(node *corev1.Node) {
	delete(node.Annotations, v1alpha1.DisruptingSinceAnnotation)
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.DisruptingTaintKey })
}
