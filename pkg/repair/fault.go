// Package repair decides which machines are unhealthy, how long Karve tolerates it, and when so many are unhealthy that the cause is not in the machines. The
// package has no clock and no client.
package repair

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/records"
)

// Tolerations are how long a machine may be unhealthy before Karve replaces it.
type Tolerations struct {
	// NotReady is for Nodes that are not ready or whose kubelet does not report, and for those whose storage, network, kernel or container runtime is not ready.
	NotReady time.Duration
	// GPUFault is for GPUs that are out of service.
	GPUFault time.Duration
	// Replicas is for machines that have fewer replicas than they had.
	Replicas time.Duration
}

// Fault is the reason why a machine is unhealthy.
type Fault struct {
	// Reason is the type of the Node's condition, or ReplicasMissing.
	Reason string
	// Message is a sentence without the name of the Node.
	Message string
	// Since is when it began, and Until is when Karve stops tolerating it.
	Since, Until time.Time
	// Forceful reports whether the kubelet does not respond, so that asking it to stop pods has no effect.
	Forceful bool
}

// ReplicasMissing is the Reason of a machine that exposes fewer replicas than promised.
const ReplicasMissing = "ReplicasMissing"

// hopeless is how long Karve tolerates a faulty GPU that no reset can repair. The machine is not replaced immediately, because a person may be about to
// reboot it.
const hopeless = time.Minute

// policy is a status of a condition that makes a machine unhealthy. The policies and their default durations are those of Karpenter's AWS provider.
type policy struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	tolerance time.Duration
	forceful  bool
}

func (t Tolerations) policies() []policy {
	return []policy{
		{corev1.NodeReady, corev1.ConditionFalse, t.NotReady, true},
		{corev1.NodeReady, corev1.ConditionUnknown, t.NotReady, true},
		{nodecontract.HardwareCondition, corev1.ConditionFalse, t.GPUFault, false},
		// Conditions of the EKS node monitoring agent.
		{"StorageReady", corev1.ConditionFalse, t.NotReady, false},
		{"NetworkingReady", corev1.ConditionFalse, t.NotReady, false},
		{"KernelReady", corev1.ConditionFalse, t.NotReady, false},
		{"ContainerRuntimeReady", corev1.ConditionFalse, t.NotReady, false},
	}
}

// Fault returns why a machine is unhealthy, or nil if it is healthy. Machines that have not started are broken rather than unhealthy, so it returns nil
// for them. For a machine that is being deleted it returns only a kubelet that does not respond, since nothing else would remove its pods. Of several
// reasons it returns one that is forceful and no longer tolerated, and otherwise the one that ends first.
func (t Tolerations) Fault(m *records.Machine, now time.Time) *Fault {
	if m.Node == nil || !m.Started() && !m.Deleting() {
		return nil
	}
	var all []Fault
	for _, p := range t.policies() {
		if !m.Started() && !p.forceful {
			continue
		}
		if c := conditionOf(m.Node, p.condition); c != nil && c.Status == p.status {
			all = append(all, p.fault(c, now))
		}
	}
	if s := t.shortage(m, now); s != nil {
		all = append(all, *s)
	}
	if len(all) == 0 {
		return nil
	}
	forcing := func(s Fault) int {
		if s.Forceful && !now.Before(s.Until) {
			return 0
		}
		return 1
	}
	worst := slices.MinFunc(all, func(a, b Fault) int { return cmp.Or(cmp.Compare(forcing(a), forcing(b)), a.Until.Compare(b.Until)) })
	return &worst
}

func (p policy) fault(c *corev1.NodeCondition, now time.Time) Fault {
	since := c.LastTransitionTime.Time
	if since.IsZero() {
		since = now // The start is unknown, so the time begins now.
	}
	tolerance := p.tolerance
	if p.condition == nodecontract.HardwareCondition && (c.Reason == nodecontract.ReasonReplace || c.Reason == nodecontract.ReasonLost) {
		tolerance = min(tolerance, hopeless)
	}
	return Fault{
		Reason: string(p.condition), Since: since, Until: since.Add(tolerance), Forceful: p.forceful,
		Message: fmt.Sprintf("its condition %s is %s since %s (%s: %s)", p.condition, c.Status, since.UTC().Format(time.RFC3339), c.Reason, c.Message),
	}
}

// shortage returns a lack of replicas, or nil if there is none. A short one does not count: while a device plugin restarts or the agent changes the
// number, the Node has no replicas.
func (t Tolerations) shortage(m *records.Machine, now time.Time) *Fault {
	since := ShortSince(m.Node)
	if since == nil || !Short(m) || now.Before(since.Add(t.Replicas/2)) {
		return nil
	}
	return &Fault{
		Reason: ReplicasMissing, Since: *since, Until: since.Add(t.Replicas), Message: fmt.Sprintf("it exposes %d of %d %s since %s, and no agent says why",
			m.Exposed(), m.Promise.Replicas(), m.Promise.Resource, since.UTC().Format(time.RFC3339)),
	}
}

// Short reports whether a started machine exposes fewer replicas than promised and its agent gives no reason.
func Short(m *records.Machine) bool {
	if m.Node == nil || !m.Started() || m.Exposed() >= m.Promise.Replicas() || m.GPUsCordoned() {
		return false
	}
	c := conditionOf(m.Node, nodecontract.SharingCondition)
	return c == nil || c.Status != corev1.ConditionFalse || c.Reason == nodecontract.ReasonNone
}

// ShortSince returns when the Node began to lack replicas, or nil if it does not lack any.
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
