package disruption

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// decides runs Karve's next steps and checks each before it carries it out.
func (s *simulation) decides() {
	state := passOf(s.cluster, tolerations)
	state.settle = settle
	state.fakePods().blocker = func(pods []*corev1.Pod) string {
		for _, pod := range pods {
			if s.blocking[pod.UID] {
				return "blocked"
			}
		}
		return ""
	}
	state.choose()
	for _, m := range state.machines {
		m.Steady = m.Candidate != nil
	}
	if s.cheaper {
		s.consider(state)
	}
	before := s.draining()
	actions, _ := decide(state)
	actions = append(actions, state.consolidate()...)
	s.accounts, s.saving = state.accounts, slices.ContainsFunc(state.offered, func(p Proposal) bool { return !state.accounts.covers(p, nil) })
	for _, name := range state.toSteer() {
		m := state.named(name)
		SetSurplusTaint(s.node(m.Node.Name), !HasSurplusTaint(m.Machine))
	}
	seen := map[string]bool{}
	for _, a := range actions {
		if seen[a.Machine.Claim.Name] {
			s.Fatalf("two steps at once for a machine: %v", steps(actions))
		}
		seen[a.Machine.Claim.Name] = true
		s.apply(a)
	}
	if after := s.draining(); after > max(before, s.budget) {
		s.Fatalf("%d machines drain, after %d and with a budget of %d: %v", after, before, s.budget, steps(actions))
	}
}

// consider searches for a cheaper layout without waiting for the cluster to settle.
func (s *simulation) consider(state *pass) {
	for name, candidate := range state.standing(verdicts{}, func() bool { return false }).stand {
		state.named(name).Saving = candidate
	}
	state.choose()
	layout := state.lay(nil, func(m *records.Machine) string {
		if s.cluster.Now.Before(s.vain[m.Claim.Name]) {
			return "in vain"
		}
		return cmp.Or(reason.Protected(state.named(m.Claim.Name), m.Pods, state.pods), state.pods.Keeps(m))
	})
	out := propose(&layout, solve.Solver{Effort: simulatedEffort})
	state.proposals, state.searched = out.Proposals, true
	if s.accounts != nil {
		state.accounts = s.accounts
	}
	for _, m := range state.machines {
		m.Surplus = slices.Contains(out.Surplus, m.Claim.Name)
	}
	for _, p := range out.Proposals {
		for _, name := range p.Claims {
			state.named(name).Proposed = true
		}
	}
	saves := state.whatIf.saves
	state.fakeWhatIf().saves_ = func(marked []string, p Proposal) (planner.MicroUSD, string) {
		saving, why := saves(marked, p)
		for _, name := range p.Claims {
			if why != "" {
				s.vain[name] = s.cluster.Now.Add(unprofitableFor)
			}
		}
		return saving, why
	}
}

// price returns the hourly cost of all machines, including those that are starting or leaving.
func (s *simulation) price() (sum planner.MicroUSD) {
	for _, m := range s.machines() {
		sum += planner.MicroUSD(m.MicroUSDPerHour())
	}
	return sum
}

func (s *simulation) draining() int {
	n := 0
	for _, m := range s.machines() {
		if (m.Deleting() || Disrupting(&m)) && m.Replacing() != reason.Unhealthy && !isUnhealthy(&m) {
			n++
		}
	}
	return n
}

// tolerations has how long Karve tolerates unhealthy machines.
var tolerations = repair.Tolerations{NotReady: 5 * time.Minute, GPUFault: 2 * time.Minute, Replicas: 10 * time.Minute}

var ailments = []corev1.NodeConditionType{corev1.NodeReady, "AcceleratedHardwareReady"}

func isUnhealthy(m *records.Machine) bool {
	return m.Node != nil && slices.ContainsFunc(m.Node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Status != corev1.ConditionTrue })
}

// leavesForOtherReason reports whether a machine leaves for another reason and has not been unhealthy for longer than tolerated.
func (s *simulation) leavesForOtherReason(m *records.Machine) bool {
	fault := tolerations.Fault(m, s.cluster.Now)
	return m.Deleting() && m.Replacing() != reason.Unhealthy && fault != nil && fault.Until.After(s.cluster.Now)
}

// mayRepair checks that a machine that is repaired is unhealthy, and that at most a fifth of all machines are.
func (s *simulation) mayRepair(a Command) {
	all, ill := 0, 0
	for _, m := range s.machines() {
		if m.Node == nil {
			continue
		}
		all++
		if isUnhealthy(&m) && !s.leavesForOtherReason(&m) || m.Replacing() == reason.Unhealthy && m.Claim.Name != a.Machine.Claim.Name {
			ill++
		}
	}
	if !isUnhealthy(a.Machine.Machine) || ill > (all+4)/5 || a.Step == Force && !NotReady(a.Machine.Node) {
		s.Fatalf("step %s of %s while %d of %d machines are unhealthy: %v", a.Step, a.Machine.Node.Name, ill, all, a.Machine.Node.Status.Conditions)
	}
}

// mayMove checks that the machine has cost, since each of its pods started there, as much as the restart of the pod.
func (s *simulation) mayMove(a Command) {
	restart, err := s.cluster.GPUNodeClasses[0].Spec.Consolidation.RestartMicroUSD()
	if err != nil {
		s.Fatal(err)
	}
	for _, pod := range a.Machine.Moving() {
		if paid := s.cluster.Now.Sub(facts.StartTime(pod)).Hours() * float64(a.Machine.MicroUSDPerHour()); paid < float64(restart) {
			s.Fatalf("pod %s restarts after %s, when %s has cost %.0f of its %d", pod.Name, s.cluster.Now.Sub(facts.StartTime(pod)), a.Machine.Claim.Name, paid, restart)
		}
	}
}

// mayDrain checks that the pods of a machine have room on started machines, after all other pods that wait for room or are about to.
func (s *simulation) mayDrain(a Command) {
	ahead := 0
	for i := range s.cluster.Pods {
		if s.cluster.Pods[i].Spec.NodeName == "" {
			ahead++
		}
	}
	for _, m := range s.machines() {
		if m.Deleting() || m.Replacing() != "" && Disrupting(&m) && m.Claim.Name != a.Machine.Claim.Name {
			ahead += len(m.Moving())
		}
		if m.Claim.Name == a.Machine.Claim.Name && slices.ContainsFunc(m.Pods, func(p *corev1.Pod) bool { return s.blocking[p.UID] }) {
			s.Fatalf("%s goes with a pod that may not be evicted", m.Node.Name)
		}
	}
	if _, started, _ := s.need(); !s.mixed && len(a.Machine.Moving()) > 0 && started < ahead+len(a.Machine.Moving()) {
		s.Fatalf("step %s of %s with %d pods while %d other pods need one of %d places", a.Step, a.Machine.Node.Name, len(a.Machine.Moving()), ahead, started)
	}
}

// settles lets all components act in turn until nothing changes, and reports whether that happens. It lets an operator repair unhealthy machines that Karve
// does not replace.
func (s *simulation) settles() bool {
	quiet := 0
	for range 900 {
		s.cluster.Now = s.cluster.Now.Add(settle)
		for name, unhealthy := range repair.Diagnose(s.cluster, s.machines(), tolerations).Cases {
			if unhealthy.Kept != "" {
				s.recovers(name)
			}
		}
		s.decides()
		s.provision()
		for _, name := range s.waiting() {
			s.start(name, false)
		}
		for _, name := range s.deleting() {
			s.drain(name)
		}
		for s.bind(s.prefers) {
		}
		if !s.quiet() {
			quiet = 0
		} else if quiet++; !s.cheaper || quiet > 3 && !s.saving {
			return true
		} else if s.saving {
			quiet = 0
			s.cluster.Now = s.cluster.Now.Add(10 * time.Minute)
		} else {
			s.cluster.Now = s.cluster.Now.Add(unprofitableFor)
		}
	}
	return false
}

// quiet reports whether no pod waits, no machine is starting or leaving, and none has drifted.
func (s *simulation) quiet() bool {
	if need, _, _ := s.need(); need > 0 || len(s.deleting())+len(s.waiting()) > 0 {
		return false
	}
	pool := snapshot.Pools(s.cluster)[0]
	for _, m := range s.machines() {
		if m.Replacing() != "" || Disrupting(&m) || isUnhealthy(&m) || drift.Of(s.cluster, &pool, &m) != nil {
			return false
		}
	}
	return true
}

// one draws one of the names.
func one(t *rapid.T) func(names []string) string {
	return func(names []string) string { return rapid.SampledFrom(names).Draw(t, "one") }
}
