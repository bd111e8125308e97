// Package reason has one file for each reason to disrupt machines. A reason decides which machines are candidates, what keeps one at present, and how many of a
// pool may go at once. What is the same for all reasons is up to the controller: it marks a candidate, waits until its pods have a place elsewhere, taints the
// Node and deletes the NodeClaim. The package is pure: it has no client and no clock.
package reason

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

// Names of reasons, beside Karpenter's Empty, Drifted and Underutilized.
const (
	// Expiring is the name of the reason for machines that Karpenter is about to delete because they are as old as they may become.
	Expiring = "Expiring"
	// Unhealthy is the name of the reason for machines that do not work.
	Unhealthy = repair.Unhealthy
)

// Reason is one reason to disrupt machines.
type Reason interface {
	// Name is the word by which budgets, events and metrics name the reason.
	Name() karpv1.DisruptionReason
	// Candidate returns why the machine is to be disrupted; nil when it is not.
	Candidate(m *Machine, now time.Time) *Candidate
	// Blocked returns what on the machine, a candidate c of this reason, keeps it at present, of its pods only those that are asked; "" when nothing does.
	Blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string
	// Allowed returns how many machines of the pool may be disrupted at once.
	Allowed(p *Pool) int
	// Ended returns why a machine stays that is marked and is no candidate any more. It returns false when it cannot be told at present whether it is one.
	Ended(m *Machine) (why string, known bool)
}

// Candidate is why a machine is to be disrupted.
type Candidate struct {
	// Reason is the name of the reason.
	Reason karpv1.DisruptionReason
	// Word is what the mark on the NodeClaim says: the name, or where there are several cases of a reason the case. Message says more.
	Word, Message string
	// Kept says what else than its pods keeps the machine; "" when nothing does.
	Kept string
	// Eventual says, as in Karpenter, that pods cannot keep the machine where its pool bounds the drain.
	Eventual bool
	// Urgent says that the machine goes before others and even where waiting pods are planned onto its Node, and that its pods are not handed over group by group.
	Urgent bool
}

// Pods knows what keeps pods on their machines.
type Pods interface {
	// Blocker returns which of the pods cannot be evicted, and why; "" when all can.
	Blocker(pods []*corev1.Pod) string
	// Keeps returns which pod keeps a machine that goes only to save cost; "" when none does.
	Keeps(m *snapshot.Machine) string
}

// replacing are the reasons for which machines are marked, drained and deleted, the first of them first.
var replacing = []Reason{unhealthy{}, drifted{}, underutilized{}}

// others are the reasons with steps of their own.
var others = []Reason{empty{}, expiring{}}

// First returns the candidate of the first reason to replace a machine; nil when there is none. A reason that something other than pods keeps back gives way to the next.
func First(m *Machine, now time.Time) *Candidate {
	var kept *Candidate
	for _, r := range replacing {
		switch c := r.Candidate(m, now); {
		case c == nil:
		case c.Kept == "":
			return c
		case kept == nil:
			kept = c
		}
	}
	return kept
}

// Of returns the reason with a name, or of the word of a mark: words that name no reason are cases of drift.
func Of[T ~string](word T) Reason {
	for _, r := range slices.Concat(replacing, others) {
		if r.Name() == karpv1.DisruptionReason(word) {
			return r
		}
	}
	return drifted{}
}

// protectedNode returns what on the Node keeps the machine; "" when nothing does.
func protectedNode(m *Machine) string {
	if m.Node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
		return "the node carries " + karpv1.DoNotDisruptAnnotationKey
	}
	return ""
}

// Protected returns what on the Node, or which of the pods, keeps the machine; "" when nothing does.
func Protected(m *Machine, asked []*corev1.Pod, pods Pods) string {
	if why := protectedNode(m); why != "" {
		return why
	}
	return pods.Blocker(asked)
}

// blocked returns what keeps a candidate that is replaced, whatever the reason.
func blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string {
	if c.Eventual && m.NodePool.DrainBounded {
		return cmp.Or(c.Kept, protectedNode(m))
	}
	if c.Kept != "" {
		return c.Kept
	}
	return Protected(m, asked, pods)
}

const asToday = "it is as it would be launched today"
