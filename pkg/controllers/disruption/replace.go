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
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot"
)

// A machine that has a cause to go, or is about to expire, is replaced: it is marked, which makes its pods demand that is planned for like that of waiting pods;
// when all of them have a place on machines that have started it is tainted, watched and given back, as an idle one is. Until then nothing has
// happened to any pod, and the mark can be taken off again.
const (
	// replace marks a machine as leaving.
	replace step = "Replace"
	// hold takes the taint off a machine again whose pods have lost their new place, and goes on waiting for one.
	hold step = "Hold"
	// stop takes the mark off: the machine stays.
	stop step = "Stop"
	// giveUp takes it off since no new place has come, and leaves the machine alone for a while.
	giveUp step = "GiveUp"
	// stay tells why a machine that has a cause to go is not replaced at present.
	stay step = "Stay"
)

// marks says that the step marks a machine as leaving, or takes that back.
func (s step) marks() bool { return s == replace || s == stop || s == giveUp }

const (
	patience = lifecycle.ReplacingPatience
	// expiryLead is how long before a machine expires its pods need another place: long enough for one to start, and at most a part of its life
	// (one in shortLife), for machines that live for less than an hour.
	expiryLead = 15 * time.Minute
	shortLife  = 4
)

// replacing is the next step of a machine that is marked as leaving; nil when there is none now.
func (s *state) replacing(m *snapshot.Machine) (*action, time.Duration) {
	c, ok := s.causes[m.Claim.Name]
	if m.Node == nil {
		return nil, 0 // Karpenter deletes the claim of a machine whose Node is gone.
	}
	if !ok {
		return s.causeless(m), 0
	}
	if a, waits := s.awaits(m, c); waits {
		return a, 0
	}
	s.going = append(s.going, m.Claim.Name)
	since := s.since(m, v1alpha1.DisruptingSinceAnnotation)
	if since == nil || !tainted(m.Node) {
		return &action{step: taint, machine: m, reason: c.reason}, s.settle
	}
	if left := since.Add(s.settle).Sub(s.now); left > 0 {
		return nil, left
	}
	if c.kind != Unhealthy && len(m.Moving()) > 0 {
		s.leavers[m.Pool()] = append(s.leavers[m.Pool()], m)
		return nil, 0
	}
	return s.removal(m, c.reason), 0
}

// awaits says whether a marked machine cannot go now, and what is its step then; nil when there is none.
func (s *state) awaits(m *snapshot.Machine, c cause) (*action, bool) {
	asked := m.Pods
	if s.underway(m) {
		moving := m.Moving() // They go as their budgets allow.
		asked = slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return slices.Contains(moving, pod) })
	}
	if why := s.keeps(m, c, asked); why != "" {
		return s.wait(m, why, true), true
	}
	allowed := s.allows(m.Pool(), c)
	if draining := s.draining[m.Pool()]; draining > allowed || !marked(m) && !notReady(m.Node) && draining == allowed {
		return s.wait(m, overBudget(m, allowed), true), true
	}
	if why := s.place(append(slices.Clone(s.going), m.Claim.Name)); why != "" {
		if s.underway(m) && underutilized(m) {
			return &action{step: stop, machine: m, reason: why}, true // Nothing is launched for the pods that were left no room.
		}
		return s.wait(m, why, false), true
	}
	if s.cold[m.Pool()] && s.idles(m) {
		return s.wait(m, "the headroom of its NodePool is not free elsewhere", false), true
	}
	return nil, false
}

// causeless is the next step of a machine that is marked and has no cause to go, as far as that can be told.
func (s *state) causeless(m *snapshot.Machine) *action {
	switch {
	case m.Replacing() == Unhealthy:
		return &action{step: stop, machine: m, reason: "it is well again"}
	case s.expires(m):
		if marked(m) {
			return &action{step: hold, machine: m, reason: "it expires soon"}
		}
		return nil // Karpenter takes it when its time is over, and asks nobody.
	case s.unknown[m.Pool()] && m.Replacing() != string(karpv1.DisruptionReasonUnderutilized):
		return s.wait(m, "its NodePool is not ready", false)
	}
	return &action{step: stop, machine: m, reason: "it is as it would be launched today"}
}

// wait is the step of a marked machine that cannot go now. A mark whose time lies further ahead than it may last was written by a clock that was ahead.
func (s *state) wait(m *snapshot.Machine, why string, tell bool) *action {
	marking := timeIn(m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation])
	switch {
	case !s.expires(m) && (marking == nil || !s.now.Before(marking.Add(patience)) || marking.After(s.now.Add(patience))):
		return &action{step: giveUp, machine: m, reason: why}
	case marked(m):
		return &action{step: hold, machine: m, reason: why}
	case tell:
		return &action{step: stay, machine: m, reason: why}
	}
	return nil
}

// marks are the machines that are to be replaced from now on, and those that should be and stay: those that expire first, whatever the budgets say, since Karpenter
// does not ask them either, and then those that have a cause, the sick ones first, then the empty ones and of others the oldest.
func (s *state) marks() []action {
	var actions []action
	var due []*snapshot.Machine
	var names []string
	mark := func(m *snapshot.Machine, reason string) {
		actions = append(actions, action{step: replace, machine: m, reason: reason})
		names = append(names, m.Claim.Name)
		s.leaving[m.Pool()]++
	}
	for i := range s.machines {
		m := &s.machines[i]
		if m.Leaving() || !m.Started() || marked(m) {
			continue
		}
		if s.takesAlong(m) {
			mark(m, Expiring)
		} else if c, ok := s.causes[m.Claim.Name]; ok && s.steady[m.Claim.Name] && (!s.wanted[m.Node.Name] || c.kind == Unhealthy) {
			due = append(due, m)
		}
	}
	slices.SortStableFunc(due, func(a, b *snapshot.Machine) int {
		return cmp.Or(cmp.Compare(s.causes[a.Claim.Name].rank(), s.causes[b.Claim.Name].rank()), cmp.Compare(full(a), full(b)), a.Claim.CreationTimestamp.Compare(b.Claim.CreationTimestamp.Time))
	})
	for _, m := range due {
		c := s.causes[m.Claim.Name]
		why := s.refuses(m, c)
		if why == "" && full(m) > 0 {
			why = s.planned(append(slices.Clone(names), m.Claim.Name))
		}
		if why != "" {
			actions = append(actions, action{step: stay, machine: m, reason: why})
			continue
		}
		mark(m, c.reason)
	}
	return actions
}

// takesAlong says that the machine expires soon with something on it that needs another place before: pods, or headroom.
func (s *state) takesAlong(m *snapshot.Machine) bool {
	return s.expires(m) && (len(m.Moving()) > 0 || s.warm[m.Node.Name])
}

// full is 0 for an empty machine and 1 for others.
func full(m *snapshot.Machine) int {
	if m.Empty() {
		return 0
	}
	return 1
}

// refuses says why a machine that has a cause to go is not to be replaced now; "" when it is.
func (s *state) refuses(m *snapshot.Machine, c cause) string {
	if why := s.keeps(m, c, m.Pods); why != "" {
		return why
	}
	if after := retention.BackoffUntil(m, s.now); !after.IsZero() {
		return fmt.Sprintf("no new place for its pods came, and the next try is after %s (remove the annotation %s to try now)",
			after.Format(time.RFC3339), v1alpha1.ReplaceAfterAnnotation)
	}
	if allowed := s.allows(m.Pool(), c); s.leaving[m.Pool()] >= allowed {
		return overBudget(m, allowed)
	}
	if full(m) > 0 {
		return s.closed[m.Pool()]
	}
	return ""
}

// keeps says what on a machine keeps it from being replaced, of its pods those that are asked; "" when nothing does.
func (s *state) keeps(m *snapshot.Machine, c cause, asked []*corev1.Pod) string {
	if c.kept != "" {
		return c.kept
	}
	if c.forceful && s.bounded[m.Pool()] {
		return s.protectsNode(m)
	}
	if why := cmp.Or(s.protectsNode(m), s.blocker(asked)); why != "" || c.kind != karpv1.DisruptionReasonUnderutilized {
		return why
	}
	return s.stays(m)
}

// holdsBack says why a machine does not go after all, seen live; "" when it does. A pod that the decision did not know of has no new place.
func (s *state) holdsBack(decided, live *snapshot.Machine) string {
	if !tainted(live.Node) {
		return "its taint is gone"
	}
	known := map[types.UID]bool{}
	for _, pod := range decided.Pods {
		known[pod.UID] = true
	}
	if decided.Replacing() == "" {
		if !s.idles(live) {
			return "it is not empty"
		}
		return s.holdsIdle(live)
	}
	for _, pod := range live.Moving() {
		if !known[pod.UID] {
			return fmt.Sprintf("pod %s came", podName(pod))
		}
	}
	return s.keeps(live, s.causes[decided.Claim.Name], live.Pods)
}

// expires says that Karpenter will take the machine soon because its time is over.
func (s *state) expires(m *snapshot.Machine) bool {
	life := m.Claim.Spec.ExpireAfter.Duration
	if life == nil {
		return false
	}
	return !s.now.Before(m.Claim.CreationTimestamp.Add(*life - min(expiryLead, *life/shortLife)))
}
