package disruption

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/snapshot"
)

// longestWait is the longest time between two passes. Schedules of budgets open and close meanwhile.
const longestWait = time.Minute

// decide returns the next steps of the machines, at most one for each and sorted by name, and the latest time of the next pass. It begins no step to a
// cheaper layout: see consolidate.
func decide(s *pass) (commands []command, again time.Duration) {
	s.acted = map[string]bool{}
	defer func() {
		for _, c := range commands {
			s.acted[c.machine.Claim.Name] = c.step != blocked && c.step != stay
		}
	}()
	again = longestWait
	s.count()
	s.drained()
	taken := map[string]int{}
	add := func(c command) {
		taken[c.machine.Claim.Name] = len(commands)
		commands = append(commands, c)
	}
	forced, alone := s.forced()
	if alone {
		return forced, soon
	}
	for _, c := range forced {
		add(c)
	}
	machines := slices.DeleteFunc(s.ordered(), func(m *reason.Machine) bool {
		return reason.Forced(m) || m.Deleting() || m.Node == nil || snapshot.IsSetAside(m.Claim)
	})
	s.whatIf.expect(asIs, claimsOf(slices.DeleteFunc(slices.Clone(machines), func(m *reason.Machine) bool { return m.Replacing() == "" || m.Candidate == nil })))
	for _, m := range machines {
		s.visit(m.Machine)
		c, wait := s.next(m)
		if c != nil {
			s.follow(c)
			add(*c)
		}
		if wait > 0 {
			again = min(again, wait)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.pools)) {
		if p := s.pools[name]; len(p.leavers) > 0 {
			for _, c := range s.nextHandOvers(p) {
				add(c)
			}
			again = min(again, soon)
		}
	}
	again = min(again, s.untilUnhealthy(), s.untilSteady())
	for _, c := range s.marks() {
		i, ok := taken[c.machine.Claim.Name]
		switch {
		case !ok:
			add(c)
		case c.step == replace:
			commands[i] = c // It replaces a command for the idle machine.
		}
	}
	sortByName(commands)
	return commands, again
}

func sortByName(commands []command) {
	slices.SortStableFunc(commands, func(a, b command) int { return strings.Compare(a.machine.Claim.Name, b.machine.Claim.Name) })
}

// next returns the next step of a machine, or nil if there is none now. It also returns when another step may be due, or 0 if that is unknown.
func (s *pass) next(m *reason.Machine) (*command, time.Duration) {
	if m.Replacing() != "" {
		return s.nextReplaced(m)
	}
	return s.nextIdle(m)
}

// forced returns the commands for machines that are deleted immediately. If alone is true, this pass does nothing else, because the NodeClaim of one of
// them is not being deleted yet. Karve decides about other machines once the pods of that machine count as demand.
func (s *pass) forced() (commands []command, alone bool) {
	for _, m := range s.ordered() {
		if reason.Forced(m) && !drainOver(m.Machine, s.now) {
			commands = append(commands, command{step: force, machine: m, reason: m.Health.Message})
			alone = alone || !m.Deleting()
		}
	}
	return commands, alone
}

// drainOver reports whether a machine is being deleted and its drain has ended.
func drainOver(m *snapshot.Machine, now time.Time) bool {
	until := timeIn(m.Claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	return m.Deleting() && until != nil && !until.After(now)
}

// ordered returns the machines in the order of decisions. Marked machines that are disrupting come first, because their pods take room first. Empty
// machines come before idle ones with pods, because an empty machine that is deleted offers no room for those pods.
func (s *pass) ordered() []*reason.Machine {
	machines := slices.Clone(s.machines)
	slices.SortStableFunc(machines, func(a, b *reason.Machine) int { return cmp.Compare(rank(a), rank(b)) })
	return machines
}

func rank(m *reason.Machine) int {
	switch {
	case m.Replacing() != "" && disrupting(m.Machine):
		return 0
	case !m.NoReplicasHeld():
		return 1
	case m.Empty():
		return 2
	}
	return 3
}

// untilUnhealthy returns the time until the next unhealthy machine is no longer tolerated.
func (s *pass) untilUnhealthy() time.Duration {
	soonest := longestWait
	for _, m := range s.machines {
		if m.Health != nil && m.Health.Wait > 0 {
			soonest = min(soonest, m.Health.Wait)
		}
	}
	return soonest
}

// untilSteady returns the settle time if a candidate has not lasted that long yet.
func (s *pass) untilSteady() time.Duration {
	for _, m := range s.machines {
		if m.Candidate != nil && !m.Steady {
			return s.settle
		}
	}
	return longestWait
}

// untilProposed returns the settle time if a proposal has not lasted that long yet.
func (s *pass) untilProposed() time.Duration {
	for _, p := range s.proposals {
		for _, name := range p.claims {
			if m := s.named(name); m == nil || !m.Proposed {
				return s.settle
			}
		}
	}
	return longestWait
}

// disrupting reports whether the Node has the taint of a disrupted machine, or the annotation with its time. Either is enough.
func disrupting(m *snapshot.Machine) bool {
	return m.Node != nil && (tainted(m.Node) || since(m, v1alpha1.DisruptingSinceAnnotation) != nil)
}

// since returns the time in an annotation of the Node. It also returns nil if the time comes from a clock that was ahead, so that the period begins
// again.
func (s *pass) since(m *reason.Machine, annotation string) *time.Time {
	t := since(m.Machine, annotation)
	if t != nil && t.After(s.now.Add(s.settle)) {
		return nil
	}
	return t
}

// since returns the time in an annotation of the Node, or nil if it is missing or invalid.
func since(m *snapshot.Machine, annotation string) *time.Time {
	if m.Node == nil {
		return nil
	}
	return timeIn(m.Node.Annotations[annotation])
}

// timeIn parses a time. It returns nil if it is invalid.
func timeIn(value string) *time.Time {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil
	}
	return &t
}

func tainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.DisruptingTaintKey })
}
