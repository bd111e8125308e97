package disruption

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot/records"
)

// patience is how long the pods of a marked machine may have no room elsewhere.
const patience = lifecycle.ReplacingPatience

// nextReplaced decides about a marked machine.
func (d *decider) nextReplaced(m *reason.Machine, p *progress) move {
	c := m.Candidate
	if m.Node == nil {
		return move{} // Karpenter deletes the NodeClaim of a machine whose Node is gone.
	}
	if c == nil {
		return move{command: d.ended(m)}
	}
	if next, waits := d.awaits(m, c, p); waits {
		return move{command: next}
	}
	since := d.since(m.Machine, v1alpha1.DisruptingSinceAnnotation)
	if since == nil || !Tainted(m.Node) {
		return move{command: &Command{Step: Taint, Machine: m, Reason: c.Word}, wait: d.settle, goes: true}
	}
	if left := since.Add(d.settle).Sub(d.now); left > 0 {
		return move{wait: left, goes: true}
	}
	if !c.Urgent && len(m.Moving()) > 0 {
		return move{goes: true, due: true}
	}
	return move{command: d.removal(m, c.Word, p.drains), goes: true}
}

// awaits reports whether a marked machine cannot be deleted now. If so, it also returns the machine's step, or nil if there is none.
func (d *decider) awaits(m *reason.Machine, c *reason.Candidate, p *progress) (*Command, bool) {
	switch o := d.obstacle(m, c, p); {
	case o.why == "":
		return nil, false
	case o.why == later:
		return nil, true
	case o.noPlace && d.underway(m) && reason.MarkedUnderutilized(m.Machine):
		return &Command{Step: Stop, Machine: m, Reason: o.why}, true // Nothing is launched for pods that lost their room.
	default:
		return d.wait(m, o.why, !o.noPlace && !o.noHeadroom), true
	}
}

// obstacle is why a marked machine cannot be deleted now. The text is "" if it can be.
type obstacle struct {
	why string
	// noPlace reports that its pods have no room elsewhere yet. noHeadroom reports that headroom has none.
	noPlace, noHeadroom bool
}

func (d *decider) obstacle(m *reason.Machine, c *reason.Candidate, p *progress) obstacle {
	asked := m.Pods
	if d.underway(m) {
		moving := m.Moving() // These pods are evicted as their PodDisruptionBudgets allow.
		asked = slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return slices.Contains(moving, pod) })
	}
	if why := d.blocked(m, c, asked); why != "" {
		return obstacle{why: why}
	}
	allowed := d.allowed(m, c)
	counted := Disrupting(m.Machine) || NotReady(m.Node) && c.Reason != reason.Unhealthy
	if draining := p.tally.used(m, c).draining; draining > allowed || !counted && draining == allowed {
		return obstacle{why: overBudget(m, allowed)}
	}
	going := append(slices.Clone(p.going), m.Claim.Name)
	if why := d.whatIf.place(going); why != "" && (why == later || !d.leavesFirst(m, c, going)) {
		return obstacle{why: why, noPlace: true}
	}
	if m.NodePool.HeadroomComing && m.Idle() {
		return obstacle{why: "the headroom of its NodePool is not free elsewhere", noHeadroom: true}
	}
	return obstacle{}
}

// leavesFirst reports whether a machine is deleted before its pods have room elsewhere: only another machine in the slot of its reservation could hold them, and that
// cannot be launched while this one has the slot. To save cost, no pods are left without room.
func (d *decider) leavesFirst(m *reason.Machine, c *reason.Candidate, going []string) bool {
	if m.Reservation == "" || c.Reason == karpv1.DisruptionReasonUnderutilized {
		return false
	}
	why := d.whatIf.planned(going)
	return why != "" && why != later && d.whatIf.refilled(going) == ""
}

// removal returns the command that deletes a machine. If another machine is being drained with pods of the same PodDisruptionBudget, the machine waits:
// each machine was checked as if it alone used the budget, and pods that the budget still blocks at the end of the drain would be deleted.
func (f *fleet) removal(m *reason.Machine, word string, drains map[string]string) *Command {
	for _, pdb := range f.pods.Budgets(m.Pods) {
		other := drains[pdb]
		if other == "" || other == m.Claim.Name {
			continue
		}
		why := fmt.Sprintf("%s is drained first, which has pods of the same PodDisruptionBudget %s", other, pdb)
		if m.Replacing() == "" {
			return &Command{Step: Blocked, Machine: m, Reason: why}
		}
		if c := f.wait(m, why, true); c.Step == GiveUp {
			return c
		}
		return &Command{Step: Stay, Machine: m, Reason: why}
	}
	return &Command{Step: Remove, Machine: m, Reason: word}
}

// ended returns the next step of a marked machine that is no longer a candidate, or nil if there is none.
func (f *fleet) ended(m *reason.Machine) *Command {
	why, known := reason.Of(m.Replacing()).Ended(m)
	switch {
	case m.Replacing() != reason.Unhealthy && reason.Expires(m, f.now):
		if Disrupting(m.Machine) {
			return &Command{Step: Hold, Machine: m, Reason: reason.WhyExpires(m)}
		}
		return nil // Karpenter deletes it when it expires.
	case !known:
		return f.wait(m, why, false)
	}
	return &Command{Step: Stop, Machine: m, Reason: why}
}

// wait returns the step of a marked machine that cannot be deleted now, or nil if there is none. A mark with a time too far in the future comes from a
// clock that was ahead.
func (f *fleet) wait(m *reason.Machine, why string, tell bool) *Command {
	marking := timeIn(m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation])
	switch {
	case !reason.Expires(m, f.now) && (marking == nil || !f.now.Before(marking.Add(patience)) || marking.After(f.now.Add(patience))):
		return &Command{Step: GiveUp, Machine: m, Reason: why}
	case Disrupting(m.Machine):
		return &Command{Step: Hold, Machine: m, Reason: why}
	case tell:
		return &Command{Step: Stay, Machine: m, Reason: why}
	}
	return nil
}

// marks returns the commands for machines that are marked now, and for candidates that stay. Machines that expire soon come first, regardless of
// budgets, because Karpenter does not check budgets for them either. Then come the urgent candidates, then the empty ones, and then the oldest.
func (d *decider) marks(t tally) []Command {
	var commands []Command
	var due []*reason.Machine
	var names []string
	mark := func(m *reason.Machine, c *reason.Candidate) {
		commands = append(commands, Command{Step: Replace, Machine: m, Reason: c.Word})
		names = append(names, m.Claim.Name)
		t.mark(m)
	}
	for _, m := range d.machines {
		if m.Leaving() || !m.Started() || Disrupting(m.Machine) {
			continue
		}
		if c := reason.Of(reason.Expiring).Candidate(m, d.now); c != nil {
			mark(m, c)
		} else if m.Candidate != nil && m.Steady && (!m.Wanted || m.Candidate.Urgent) {
			due = append(due, m)
		}
	}
	slices.SortStableFunc(due, func(a, b *reason.Machine) int {
		return cmp.Or(cmp.Compare(urgency(a.Candidate), urgency(b.Candidate)), cmp.Compare(occupied(a), occupied(b)), a.Claim.CreationTimestamp.Compare(b.Claim.CreationTimestamp.Time))
	})
	d.whatIf.expect(asPlanned, claimsOf(due))
	for _, m := range due {
		why := d.refuses(m, m.Candidate, t)
		if going := append(slices.Clone(names), m.Claim.Name); why == "" && occupied(m) > 0 {
			if why = d.whatIf.planned(going); why != "" && why != later && d.leavesFirst(m, m.Candidate, going) {
				why = ""
				m.Candidate.Message += fmt.Sprintf("; no slot of its reservation %s is free, so it is deleted before another is launched for its pods", m.Reservation)
			}
		}
		switch why {
		case "":
		case later:
			continue
		default:
			commands = append(commands, Command{Step: Stay, Machine: m, Reason: why})
			continue
		}
		mark(m, m.Candidate)
	}
	return commands
}

// urgency returns 0 for an urgent candidate and 1 for others.
func urgency(c *reason.Candidate) int {
	if c.Urgent {
		return 0
	}
	return 1
}

// occupied returns 0 for an empty machine and 1 for others.
func occupied(m *reason.Machine) int {
	if m.Empty() {
		return 0
	}
	return 1
}

// refuses returns why a candidate is not marked now, or "" if it is.
func (f *fleet) refuses(m *reason.Machine, c *reason.Candidate, t tally) string {
	if why := f.blocked(m, c, m.Pods); why != "" {
		return why
	}
	if after := retention.BackoffUntil(m.Machine, f.now); !after.IsZero() {
		return fmt.Sprintf("no new place for its pods came, and the next try is after %s (remove the annotation %s to try now)",
			after.Format(time.RFC3339), v1alpha1.ReplaceAfterAnnotation)
	}
	if allowed := f.allowed(m, c); t.used(m, c).leaving >= allowed {
		return overBudget(m, allowed)
	}
	if occupied(m) > 0 {
		return m.NodePool.Closed
	}
	return ""
}

// blockedLive returns what keeps a machine that is about to be deleted, according to its Node and pods in the API server. It returns "" if nothing
// does. A pod that arrived after the decision has no room elsewhere.
func (f *fleet) blockedLive(m *reason.Machine, live *records.Machine, idle []*reason.Machine) string {
	if !Tainted(live.Node) {
		return "its taint is gone"
	}
	now := *m
	now.Machine = live
	if m.Replacing() == "" {
		if !now.Idle() {
			return "it is not empty"
		}
		return f.blockedIdle(&now, &reason.Candidate{Reason: karpv1.DisruptionReasonEmpty}, idle)
	}
	known := map[types.UID]bool{}
	for _, pod := range m.Pods {
		known[pod.UID] = true
	}
	for _, pod := range live.Moving() {
		if !known[pod.UID] {
			return fmt.Sprintf("pod %s came", podName(pod))
		}
	}
	return f.blocked(&now, m.Candidate, live.Pods)
}
