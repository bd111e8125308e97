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
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot"
)

// claimsOf returns the names of the machines' NodeClaims.
func claimsOf(machines []*reason.Machine) []string {
	var names []string
	for _, m := range machines {
		names = append(names, m.Claim.Name)
	}
	return names
}

// patience is how long the pods of a marked machine may have no room elsewhere.
const patience = lifecycle.ReplacingPatience

// nextReplaced returns the next step of a marked machine, or nil if there is none now. It also returns when another step may be due, or 0 if that is
// unknown.
func (s *pass) nextReplaced(m *reason.Machine) (*command, time.Duration) {
	c := m.Candidate
	if m.Node == nil {
		return nil, 0 // Karpenter deletes the NodeClaim of a machine whose Node is gone.
	}
	if c == nil {
		return s.ended(m), 0
	}
	if next, waits := s.awaits(m, c); waits {
		return next, 0
	}
	s.going = append(s.going, m.Claim.Name)
	since := s.since(m, v1alpha1.DisruptingSinceAnnotation)
	if since == nil || !tainted(m.Node) {
		return &command{step: taint, machine: m, reason: c.Word}, s.settle
	}
	if left := since.Add(s.settle).Sub(s.now); left > 0 {
		return nil, left
	}
	if !c.Urgent && len(m.Moving()) > 0 {
		p := s.pool(m)
		p.leavers = append(p.leavers, m)
		return nil, 0
	}
	return s.removal(m, c.Word), 0
}

// awaits reports whether a marked machine cannot be deleted now. If so, it also returns the machine's step, or nil if there is none.
func (s *pass) awaits(m *reason.Machine, c *reason.Candidate) (*command, bool) {
	switch o := s.obstacle(m, c); {
	case o.why == "":
		return nil, false
	case o.why == later:
		return nil, true
	case o.noPlace && s.underway(m) && reason.MarkedUnderutilized(m.Machine):
		return &command{step: stop, machine: m, reason: o.why}, true // Nothing is launched for pods that lost their room.
	default:
		return s.wait(m, o.why, !o.noPlace && !o.noHeadroom), true
	}
}

// obstacle is why a marked machine cannot be deleted now. The text is "" if it can be.
type obstacle struct {
	why string
	// noPlace reports that its pods have no room elsewhere yet. noHeadroom reports that headroom has none.
	noPlace, noHeadroom bool
}

func (s *pass) obstacle(m *reason.Machine, c *reason.Candidate) obstacle {
	asked := m.Pods
	if s.underway(m) {
		moving := m.Moving() // These pods are evicted as their PodDisruptionBudgets allow.
		asked = slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return slices.Contains(moving, pod) })
	}
	if why := s.blocked(m, c, asked); why != "" {
		return obstacle{why: why}
	}
	allowed := s.allowed(m, c)
	counted := disrupting(m.Machine) || notReady(m.Node) && c.Reason != reason.Unhealthy
	if draining := s.used(m, c).draining; draining > allowed || !counted && draining == allowed {
		return obstacle{why: overBudget(m, allowed)}
	}
	if why := s.whatIf.place(append(slices.Clone(s.going), m.Claim.Name)); why != "" {
		return obstacle{why: why, noPlace: true}
	}
	if m.NodePool.HeadroomComing && m.Idle() {
		return obstacle{why: "the headroom of its NodePool is not free elsewhere", noHeadroom: true}
	}
	return obstacle{}
}

// ended returns the next step of a marked machine that is no longer a candidate, or nil if there is none.
func (s *pass) ended(m *reason.Machine) *command {
	why, known := reason.Of(m.Replacing()).Ended(m)
	switch {
	case m.Replacing() != reason.Unhealthy && reason.Expires(m, s.now):
		if disrupting(m.Machine) {
			return &command{step: hold, machine: m, reason: "it expires soon"}
		}
		return nil // Karpenter deletes it when it expires.
	case !known:
		return s.wait(m, why, false)
	}
	return &command{step: stop, machine: m, reason: why}
}

// wait returns the step of a marked machine that cannot be deleted now, or nil if there is none. A mark with a time too far in the future comes from a
// clock that was ahead.
func (s *pass) wait(m *reason.Machine, why string, tell bool) *command {
	marking := timeIn(m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation])
	switch {
	case !reason.Expires(m, s.now) && (marking == nil || !s.now.Before(marking.Add(patience)) || marking.After(s.now.Add(patience))):
		return &command{step: giveUp, machine: m, reason: why}
	case disrupting(m.Machine):
		return &command{step: hold, machine: m, reason: why}
	case tell:
		return &command{step: stay, machine: m, reason: why}
	}
	return nil
}

// marks returns the commands for machines that are marked now, and for candidates that stay. Machines that expire soon come first, regardless of
// budgets, because Karpenter does not check budgets for them either. Then come the urgent candidates, then the empty ones, and then the oldest.
func (s *pass) marks() []command {
	var commands []command
	var due []*reason.Machine
	var names []string
	mark := func(m *reason.Machine, c *reason.Candidate) {
		commands = append(commands, command{step: replace, machine: m, reason: c.Word})
		names = append(names, m.Claim.Name)
		s.pool(m).mark()
	}
	for _, m := range s.machines {
		if m.Leaving() || !m.Started() || disrupting(m.Machine) {
			continue
		}
		if c := reason.Of(reason.Expiring).Candidate(m, s.now); c != nil {
			mark(m, c)
		} else if m.Candidate != nil && m.Steady && (!m.Wanted || m.Candidate.Urgent) {
			due = append(due, m)
		}
	}
	slices.SortStableFunc(due, func(a, b *reason.Machine) int {
		return cmp.Or(cmp.Compare(urgency(a.Candidate), urgency(b.Candidate)), cmp.Compare(occupied(a), occupied(b)), a.Claim.CreationTimestamp.Compare(b.Claim.CreationTimestamp.Time))
	})
	s.whatIf.expect(asPlanned, claimsOf(due))
	for _, m := range due {
		why := s.refuses(m, m.Candidate)
		if why == "" && occupied(m) > 0 {
			why = s.whatIf.planned(append(slices.Clone(names), m.Claim.Name))
		}
		switch why {
		case "":
		case later:
			continue
		default:
			commands = append(commands, command{step: stay, machine: m, reason: why})
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
func (s *pass) refuses(m *reason.Machine, c *reason.Candidate) string {
	if why := s.blocked(m, c, m.Pods); why != "" {
		return why
	}
	if after := retention.BackoffUntil(m.Machine, s.now); !after.IsZero() {
		return fmt.Sprintf("no new place for its pods came, and the next try is after %s (remove the annotation %s to try now)",
			after.Format(time.RFC3339), v1alpha1.ReplaceAfterAnnotation)
	}
	if allowed := s.allowed(m, c); s.used(m, c).leaving >= allowed {
		return overBudget(m, allowed)
	}
	if occupied(m) > 0 {
		return m.NodePool.Closed
	}
	return ""
}

// blockedLive returns what keeps a machine that is about to be deleted, according to its Node and pods in the API server. It returns "" if nothing
// does. A pod that arrived after the decision has no room elsewhere.
func (s *pass) blockedLive(m *reason.Machine, live *snapshot.Machine) string {
	if !tainted(live.Node) {
		return "its taint is gone"
	}
	now := *m
	now.Machine = live
	if m.Replacing() == "" {
		if !now.Idle() {
			return "it is not empty"
		}
		return s.blockedIdle(&now, &reason.Candidate{Reason: karpv1.DisruptionReasonEmpty})
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
	return s.blocked(&now, m.Candidate, live.Pods)
}
