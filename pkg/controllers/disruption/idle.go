package disruption

import (
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/snapshot"
)

// nextIdle returns the next step of a machine that is not being replaced, or nil if there is none now. It also returns when another step may be due, or
// 0 if that is unknown.
func (s *pass) nextIdle(m *reason.Machine) (*command, time.Duration) {
	empty := reason.Of(karpv1.DisruptionReasonEmpty).Candidate(m, s.now)
	if empty == nil {
		if since(m.Machine, v1alpha1.IdleSinceAnnotation) != nil || disrupting(m.Machine) {
			return &command{step: keep, machine: m}, 0
		}
		return nil, 0
	}
	idleSince, disruptingSince := s.since(m, v1alpha1.IdleSinceAnnotation), s.since(m, v1alpha1.DisruptingSinceAnnotation)
	if idleSince == nil {
		return &command{step: markIdle, machine: m}, *m.NodePool.IdleAfter
	}
	if left := idleSince.Add(*m.NodePool.IdleAfter).Sub(s.now); left > 0 {
		return nil, left
	}
	if why := s.refusesIdle(m, empty); why != "" {
		if disrupting(m.Machine) {
			return &command{step: keep, machine: m, reason: why}, 0
		}
		return &command{step: blocked, machine: m, reason: why}, 0
	}
	s.idle = append(s.idle, m)
	if disruptingSince == nil || !tainted(m.Node) {
		return &command{step: taint, machine: m}, s.settle
	}
	if left := disruptingSince.Add(s.settle).Sub(s.now); left > 0 {
		return nil, left
	}
	return s.removal(m, ""), 0
}

// refusesIdle returns why an idle machine is not deleted now, or "" if it is.
func (s *pass) refusesIdle(m *reason.Machine, empty *reason.Candidate) string {
	if why := s.blockedIdle(m, empty); why != "" {
		return why
	}
	draining := s.pool(m).draining
	if !disrupting(m.Machine) && !notReady(m.Node) {
		draining++
	}
	// A tainted machine is checked again, because a schedule may have changed the budget meanwhile.
	if allowed := s.allowed(m, empty); draining > allowed {
		return overBudget(m, allowed)
	}
	return ""
}

// blockedIdle returns what keeps an idle machine, alone or together with the other idle machines that are about to be deleted. It returns "" if nothing does.
func (s *pass) blockedIdle(m *reason.Machine, empty *reason.Candidate) string {
	if why := s.blocked(m, empty, m.Pods); why != "" {
		return why
	}
	var going []*snapshot.Machine
	for _, other := range s.idle {
		if other.Claim.Name != m.Claim.Name {
			going = append(going, other.Machine)
		}
	}
	return s.pods.Hold(slices.Concat(going, []*snapshot.Machine{m.Machine}), nil)
}
