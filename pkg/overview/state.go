package overview

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// describe sets the state of one of Karve's machines and its message.
func (b *builder) describe(n *Node, m *records.Machine) {
	n.State = m.State()
	if m.Broken(b.Now, b.ReplicasTimeout) {
		n.State = lifecycle.Broken
	}
	since := func(annotations map[string]string, key string) string {
		if at := facts.TimeOf(annotations[key]); !at.IsZero() {
			return " " + words.Age(b.Now.Sub(at))
		}
		return ""
	}
	switch n.State {
	case lifecycle.Requested, lifecycle.Launched, lifecycle.Registered, lifecycle.Initializing:
		n.Message, n.Severity = "starting "+words.Age(b.Now.Sub(n.Created)), Busy
	case lifecycle.Broken:
		broken, _ := m.BrokenSince(b.ReplicasTimeout)
		n.Message, n.Severity = "broken "+words.Age(b.Now.Sub(broken))+", did not start", Bad
	case lifecycle.NodeMissing:
		n.Message, n.Severity = "its Node is missing", Bad
	case lifecycle.Replacing:
		n.Message, n.Severity = "replacing"+since(m.Claim.Annotations, v1alpha1.ReplacingSinceAnnotation)+" ("+m.Replacing()+")", Busy
	case lifecycle.Disrupting:
		n.Message, n.Severity = "disrupting"+since(m.Node.Annotations, v1alpha1.DisruptingSinceAnnotation), Busy
	case lifecycle.Draining:
		n.Message, n.Severity = "draining", Busy
		if at := m.Claim.DeletionTimestamp; at != nil {
			n.Message += " " + words.Age(b.Now.Sub(at.Time))
		}
	case lifecycle.Started, lifecycle.Unhealthy:
		b.describeStarted(n, m)
	}
}

func (b *builder) describeStarted(n *Node, m *records.Machine) {
	n.Message, n.Severity = b.condition(m.Node)
	if n.Severity != Good {
		if n.Severity == Bad {
			n.State = lifecycle.Unhealthy
		}
		return
	}
	exposed, promised := m.Exposed(), m.Promise.Replicas()
	if m.GPUsCordoned() {
		n.Message, n.Severity = fmt.Sprintf("GPUs cordoned, exposes %d of %s", exposed, words.Count(promised, "replica")), Busy
		return
	}
	if exposed < promised {
		n.Message, n.Severity = fmt.Sprintf("exposes %d of %s", exposed, words.Count(promised, "replica")), Bad
		return
	}
	idle := facts.TimeOf(m.Node.Annotations[v1alpha1.IdleSinceAnnotation])
	if idle.IsZero() {
		return
	}
	n.IdleSince, n.Severity, n.Message = &idle, Idle, "idle "+words.Age(b.Now.Sub(idle))
	pool := b.pools[n.Pool]
	if pool == nil || pool.KeepsIdle() != "" {
		return
	}
	if after, never := pool.IdleAfter(); !never {
		n.LeavesAt = new(idle.Add(after))
		if left := n.LeavesAt.Sub(b.Now); left > 0 {
			n.Message += ", deleted in " + words.Age(left)
		}
	}
}

// condition returns a message from the conditions of a Node that runs pods.
func (b *builder) condition(node *corev1.Node) (message string, severity Severity) {
	message, severity = "Ready", Good
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		since := " " + words.Age(b.Now.Sub(c.LastTransitionTime.Time))
		switch {
		case c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue:
			return "not ready" + since, Bad
		case c.Type == nodecontract.HardwareCondition && c.Status == corev1.ConditionFalse:
			message, severity = c.Reason+since, Bad
		case c.Type == nodecontract.SharingCondition && c.Status == corev1.ConditionFalse && severity == Good:
			message, severity = c.Reason+since, Bad
		}
	}
	if severity == Good && node.Spec.Unschedulable {
		return "cordoned", Busy
	}
	return message, severity
}
