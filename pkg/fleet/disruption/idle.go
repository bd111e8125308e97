package disruption

import (
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/snapshot/records"
)

// nextIdle decides about a machine that is not being replaced.
func (d *decider) nextIdle(m *reason.Machine, p *progress) move {
	empty := reason.Of(karpv1.DisruptionReasonEmpty).Candidate(m, d.now)
	if empty == nil {
		if since(m.Machine, v1alpha1.IdleSinceAnnotation) != nil || Disrupting(m.Machine) {
			return move{command: &Command{Step: Keep, Machine: m}}
		}
		return move{}
	}
	idleSince, disruptingSince := d.since(m.Machine, v1alpha1.IdleSinceAnnotation), d.since(m.Machine, v1alpha1.DisruptingSinceAnnotation)
	if idleSince == nil {
		return move{command: &Command{Step: MarkIdle, Machine: m}, wait: *m.NodePool.IdleAfter}
	}
	if left := idleSince.Add(*m.NodePool.IdleAfter).Sub(d.now); left > 0 {
		return move{wait: left}
	}
	if why := d.refusesIdle(m, empty, p); why != "" {
		if Disrupting(m.Machine) {
			return move{command: &Command{Step: Keep, Machine: m, Reason: why}}
		}
		return move{command: &Command{Step: Blocked, Machine: m, Reason: why}}
	}
	if disruptingSince == nil || !Tainted(m.Node) {
		return move{command: &Command{Step: Taint, Machine: m}, wait: d.settle, goes: true}
	}
	if left := disruptingSince.Add(d.settle).Sub(d.now); left > 0 {
		return move{wait: left, goes: true}
	}
	return move{command: d.removal(m, "", p.drains), goes: true}
}

// refusesIdle returns why an idle machine is not deleted now, or "" if it is.
func (f *fleet) refusesIdle(m *reason.Machine, empty *reason.Candidate, p *progress) string {
	if why := f.blockedIdle(m, empty, p.idle); why != "" {
		return why
	}
	draining := p.tally.of(m.Pool()).all.draining
	if !Disrupting(m.Machine) && !NotReady(m.Node) {
		draining++
	}
	// A tainted machine is checked again, because a schedule may have changed the budget meanwhile.
	if allowed := f.allowed(m, empty); draining > allowed {
		return overBudget(m, allowed)
	}
	return ""
}

// blockedIdle returns what keeps an idle machine, alone or together with the other idle machines that are about to be deleted. It returns "" if nothing does.
func (f *fleet) blockedIdle(m *reason.Machine, empty *reason.Candidate, idle []*reason.Machine) string {
	if why := f.blocked(m, empty, m.Pods); why != "" {
		return why
	}
	var going []*records.Machine
	for _, other := range idle {
		if other.Claim.Name != m.Claim.Name {
			going = append(going, other.Machine)
		}
	}
	return f.pods.Hold(slices.Concat(going, []*records.Machine{m.Machine}), nil)
}
