// Package repair decides which machines are sick, how long that is borne, and when too many are for it to be the machines' fault. It is pure.
package repair

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
)

// Tolerations are how long what ails machines is borne before they are replaced.
type Tolerations struct {
	// NotReady is for Nodes that are not ready or not heard of, and for those whose storage, network, kernel or container runtime is not ready.
	NotReady time.Duration
	// GPUFault is for GPUs that are out of service.
	GPUFault time.Duration
	// Replicas is for replicas that a machine has exposed and does not expose any more.
	Replicas time.Duration
}

// Sickness is what ails a machine.
type Sickness struct {
	// Reason is one word: the type of the Node's condition that tells of it, or ReplicasMissing.
	Reason string
	// Message says it in a sentence, without the Node's name.
	Message string
	// Since is when it began, and Until how long it is borne.
	Since, Until time.Time
	// Forceful says that the kubelet does not answer for its pods any more, so that nothing is gained by asking it to end them.
	Forceful bool
}

// ReplicasMissing is the Reason of a machine that exposes fewer replicas than it promised.
const ReplicasMissing = "ReplicasMissing"

// hopeless is how long a GPU is out of service that no reset brings back. It is not replaced at once, since a person may be about to reboot the machine.
const hopeless = time.Minute

// policy says of a condition at which status it is a sickness. They are those of Karpenter's AWS provider, with its durations for defaults.
type policy struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	borne     time.Duration
	forceful  bool
}

func (t Tolerations) policies() []policy {
	return []policy{
		{corev1.NodeReady, corev1.ConditionFalse, t.NotReady, true},
		{corev1.NodeReady, corev1.ConditionUnknown, t.NotReady, true},
		{nodecontract.HardwareCondition, corev1.ConditionFalse, t.GPUFault, false},
		// Those of EKS' node monitoring agent.
		{"StorageReady", corev1.ConditionFalse, t.NotReady, false},
		{"NetworkingReady", corev1.ConditionFalse, t.NotReady, false},
		{"KernelReady", corev1.ConditionFalse, t.NotReady, false},
		{"ContainerRuntimeReady", corev1.ConditionFalse, t.NotReady, false},
	}
}

// Sickness is what ails a machine at the time; nil when nothing does, and for machines that have not started or are not there yet: those are broken
// rather than sick. One of those that is on its way out is sick when its kubelet does not answer, since nobody else would end its pods. Where there is more than one it is what calls for force by now, or else what is borne for the shortest time from now.
func (t Tolerations) Sickness(m *snapshot.Machine, now time.Time) *Sickness {
	if m.Node == nil || !m.Started() && !m.Deleting() {
		return nil
	}
	var all []Sickness
	for _, p := range t.policies() {
		if !m.Started() && !p.forceful {
			continue
		}
		if c := conditionOf(m.Node, p.condition); c != nil && c.Status == p.status {
			all = append(all, p.sickness(c, now))
		}
	}
	if s := t.shortage(m, now); s != nil {
		all = append(all, *s)
	}
	if len(all) == 0 {
		return nil
	}
	forcing := func(s Sickness) int {
		if s.Forceful && !now.Before(s.Until) {
			return 0
		}
		return 1
	}
	worst := slices.MinFunc(all, func(a, b Sickness) int { return cmp.Or(cmp.Compare(forcing(a), forcing(b)), a.Until.Compare(b.Until)) })
	return &worst
}

func (p policy) sickness(c *corev1.NodeCondition, now time.Time) Sickness {
	since := c.LastTransitionTime.Time
	if since.IsZero() {
		since = now // Nobody says since when, so it is borne.
	}
	borne := p.borne
	if p.condition == nodecontract.HardwareCondition && (c.Reason == nodecontract.ReasonReplace || c.Reason == nodecontract.ReasonLost) {
		borne = min(borne, hopeless)
	}
	return Sickness{
		Reason: string(p.condition), Since: since, Until: since.Add(borne), Forceful: p.forceful,
		Message: fmt.Sprintf("its condition %s is %s since %s (%s: %s)", p.condition, c.Status, since.UTC().Format(time.RFC3339), c.Reason, c.Message),
	}
}

// shortage is that of replicas. One of moments is none: a plugin that starts anew, or an agent that is told of another number, has its Node without
// replicas for as long.
func (t Tolerations) shortage(m *snapshot.Machine, now time.Time) *Sickness {
	since := ShortSince(m.Node)
	if since == nil || !Short(m) || now.Before(since.Add(t.Replicas/2)) {
		return nil
	}
	return &Sickness{
		Reason: ReplicasMissing, Since: *since, Until: since.Add(t.Replicas), Message: fmt.Sprintf("it exposes %d of %d %s since %s, and no agent says why",
			m.Exposed(), m.Promise.Replicas(), m.Promise.Resource, since.UTC().Format(time.RFC3339)),
	}
}

// Short says that a machine which has started exposes less than it promised, for no reason that its agent tells of.
func Short(m *snapshot.Machine) bool {
	if m.Node == nil || !m.Started() || m.Exposed() >= m.Promise.Replicas() {
		return false
	}
	c := conditionOf(m.Node, nodecontract.SharingCondition)
	return c == nil || c.Status != corev1.ConditionFalse || c.Reason == nodecontract.ReasonNone
}

// ShortSince is since when the Node was seen to be short of replicas; nil when it was not.
func ShortSince(node *corev1.Node) *time.Time {
	at, err := time.Parse(time.RFC3339, node.Annotations[v1alpha1.ReplicasShortSinceAnnotation])
	if err != nil {
		return nil
	}
	return &at
}

func conditionOf(node *corev1.Node, conditionType corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == conditionType })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}
