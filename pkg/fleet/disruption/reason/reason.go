// Package reason has a file for each reason to disrupt machines. A reason decides which machines are candidates, what keeps a candidate now, and how
// many machines of a pool may be disrupted at the same time. Package disruption decides what all reasons have in common: a candidate is marked, and when its
// pods have room elsewhere, its Node is tainted and its NodeClaim deleted. The package has no clock and no client.
package reason

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/records"
)

// Names of reasons, in addition to Karpenter's Empty, Drifted and Underutilized.
const (
	// Expiring is for machines that Karpenter will delete soon because they expire.
	Expiring = "Expiring"
	// Unhealthy is for machines that do not work.
	Unhealthy = repair.Unhealthy
)

// Reason is a reason to disrupt machines.
type Reason interface {
	// Name returns the name of the reason in budgets, events and metrics.
	Name() karpv1.DisruptionReason
	// Candidate returns why the machine should be disrupted, or nil if it should not.
	Candidate(m *Machine, now time.Time) *Candidate
	// Blocked returns what keeps machine m, which is a candidate c of this reason, now. It returns "" if nothing does. It only checks the pods in asked.
	Blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string
	// Allowed returns how many machines of the pool may be disrupted at the same time.
	Allowed(p *Pool) int
	// Ended returns why a marked machine that is no longer a candidate stays. It returns false if it is unknown whether the machine is a candidate.
	Ended(m *Machine) (why string, known bool)
}

// Candidate is why a machine should be disrupted.
type Candidate struct {
	// Reason is the name of the reason.
	Reason karpv1.DisruptionReason
	// Word is the value of the mark on the NodeClaim: the name of the reason, or the kind if the reason has several. Message is a sentence.
	Word, Message string
	// Kept is what, other than its pods, keeps the machine. It is "" if nothing does.
	Kept string
	// Eventual reports whether, as in Karpenter, pods do not keep the machine if its pool limits the drain.
	Eventual bool
	// Urgent reports whether the machine is replaced before others, even if the plan places pending pods on its Node. Its pods are not handed over in
	// groups.
	Urgent bool
}

// Pods answers what keeps pods on their machines.
type Pods interface {
	// Blocker returns which of the pods cannot be evicted, and why. It returns "" if all can.
	Blocker(pods []*corev1.Pod) string
	// Keeps returns which pod keeps a machine that would only be removed to save cost, or "" if none does.
	Keeps(m *records.Machine) string
}

// common has what a reason answers unless it knows better.
type common struct{ name karpv1.DisruptionReason }

func (c common) Name() karpv1.DisruptionReason { return c.name }

func (common) Blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string {
	return blocked(m, c, asked, pods)
}

func (c common) Allowed(p *Pool) int { return p.Budgets[c.name] }

func (common) Ended(*Machine) (string, bool) { return asToday, true }

const asToday = "it is as it would be launched today"

// protectedNode returns what on the Node keeps the machine, or "" if nothing does.
func protectedNode(m *Machine) string {
	if m.Node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
		return "the node carries " + karpv1.DoNotDisruptAnnotationKey
	}
	return ""
}

// Protected returns what on the Node or which of the pods keeps the machine, or "" if nothing does.
func Protected(m *Machine, asked []*corev1.Pod, pods Pods) string {
	if why := protectedNode(m); why != "" {
		return why
	}
	return pods.Blocker(asked)
}

// blocked returns what keeps a candidate that is replaced, for all reasons. It returns "" if nothing does.
func blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string {
	if c.Eventual && m.NodePool.DrainBounded {
		return cmp.Or(c.Kept, protectedNode(m))
	}
	if c.Kept != "" {
		return c.Kept
	}
	return Protected(m, asked, pods)
}
