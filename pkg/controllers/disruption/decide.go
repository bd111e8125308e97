package disruption

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

// step is what is done to a machine next.
type step string

const (
	// markIdle notes on the Node since when it is idle.
	markIdle step = "MarkIdle"
	// keep takes every mark of ours off the Node.
	keep step = "Keep"
	// taint keeps new pods away before the machine is given back.
	taint step = "Taint"
	// remove gives the machine back, after another look.
	remove step = "Remove"
	// blocked tells why an idle machine stays.
	blocked step = "Blocked"
)

type action struct {
	step    step
	machine *snapshot.Machine
	// reason is why: what keeps a machine that is blocked, or why one is replaced.
	reason string
	// pods are those of the machine that are evicted now.
	pods []*corev1.Pod
}

// state is what the decision depends on.
type state struct {
	now      time.Time
	machines []snapshot.Machine
	// idleAfter is how long a pool's machines may idle; a pool that is missing here never gives any back.
	idleAfter map[string]time.Duration
	// keepsIdle says of pools why their idle machines stay; "" where they do not.
	keepsIdle map[string]string
	// allowed is how many machines of a pool may be on their way out at once, by why.
	allowed map[string]map[karpv1.DisruptionReason]int
	// wanted are the Nodes that waiting pods will go to, warm those whose free replicas are headroom. Headroom keeps idle machines, and no others.
	wanted, warm map[string]bool
	// cold are the pools whose headroom is on its way in part: until it is there no idle machine goes that may have it now.
	cold map[string]bool
	// settle is how long a tainted Node is watched before it is given back.
	settle time.Duration
	// blocker says what keeps a node with the pods from draining; "" when nothing does.
	blocker func([]*corev1.Pod) string

	// causes say of claims why their machines are to be replaced; steady are those of which that was said for a while, as objects that are changed
	// together are not changed at once.
	causes map[string]cause
	steady map[string]bool
	// sick are the claims whose machines are, of which those in causes are to be replaced once their pods have another place, and those in lost at once.
	sick map[string]repair.Case
	lost map[string]bool
	// moves are the pools whose pods may be moved to make the machines cheaper.
	moves map[string]bool
	// unknown are the pools of which it cannot be told at present whether their machines have drifted.
	unknown map[string]bool
	// closed says why pools launch nothing at present.
	closed map[string]string
	// bounded are the pools whose machines drain in a bounded time, whatever their pods say.
	bounded map[string]bool
	// planned says why the pods of machines that are not marked yet would have no place if they were to leave too; "" when they would.
	planned func(claims []string) string
	// place says why the pods of marked machines have no place on machines that have started; "" when they have.
	place func(claims []string) string

	// proposals are steps to a cheaper layout, ripe the claims that have been among them for a while, surplus those without which the layout would do.
	proposals     []proposal
	ripe, surplus map[string]bool
	// kept says of claims what keeps them that would be among the proposals otherwise.
	kept map[string]string
	// launching are the pools of which machines are on their way, or about to be.
	launching map[string]bool
	// saves says by how much the machines cost less when a proposal is taken after the claims that are marked, and why it is not to be taken.
	saves func(marked []string, p proposal) (planner.MicroUSD, string)
	// places answers what becomes of machines and pods when claims are marked.
	places *places
	// stays says which pod keeps a machine from going only because the rest costs less without it; "" when none does.
	stays func(*snapshot.Machine) string

	// together says which pod that holds no replica would have no place if all of the machines went; "" when none.
	together func(going []*snapshot.Machine, taken map[string]planner.Resources) string
	// idlers are the idle machines that are about to go.
	idlers []*snapshot.Machine
	// budgets are the PodDisruptionBudgets of pods that a drain would evict, drains the claim of the machine by budget that is drained with pods of it.
	budgets func([]*corev1.Pod) []string
	drains  map[string]string

	// going are the machines that are leaving and whose pods have their new place, leavers by pool those of them whose time has come and that hold pods.
	going   []string
	leavers map[string][]*snapshot.Machine
	// homes says where a plan puts the pods of machines that leave, by the pods' names.
	homes func(claims []string) map[string]home
	// targets are the Nodes by pool that pods are handed over to now, handed when and whose that was last done, waiting the pods that are not bound.
	targets map[string]string
	handed  map[string]handed
	waiting []*corev1.Pod
	// draining are the machines on their way out by pool, leaving those and the ones that are to follow.
	draining, leaving map[string]int
}

// decide says what to do about each machine, in the order of their names, and when to look again at the latest.
func decide(s state) (actions []action, again time.Duration) {
	again = longestWait
	s.count()
	s.drained()
	s.leavers = map[string][]*snapshot.Machine{}
	taken := map[string]int{}
	add := func(a action) {
		taken[a.machine.Claim.Name] = len(actions)
		actions = append(actions, a)
	}
	forced, alone := s.forced()
	if alone {
		return forced, soon
	}
	for _, a := range forced {
		add(a)
	}
	for _, m := range s.inTurn() {
		if s.lost[m.Claim.Name] || m.Deleting() || m.Node == nil {
			continue
		}
		next := s.next
		if m.Replacing() != "" {
			next = s.replacing
		}
		a, wait := next(m)
		if a != nil {
			s.follow(a)
			add(*a)
		}
		if wait > 0 {
			again = min(again, wait)
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(s.leavers)) {
		for _, a := range s.handsOver(pool, s.leavers[pool]) {
			add(a)
		}
		again = min(again, soon)
	}
	again = min(again, s.falling(), s.settling())
	for _, a := range append(s.marks(), s.savers()...) {
		i, ok := taken[a.machine.Claim.Name]
		switch {
		case !ok:
			add(a)
		case a.step == replace:
			actions[i] = a // Whether it is idle or not does not matter any more.
		}
	}
	slices.SortStableFunc(actions, func(a, b action) int { return strings.Compare(a.machine.Claim.Name, b.machine.Claim.Name) })
	return actions, again
}

// settling is when it is known whether what is said of machines stays so.
func (s *state) settling() time.Duration {
	for name := range s.causes {
		if !s.steady[name] {
			return s.settle
		}
	}
	for _, p := range s.proposals {
		if slices.ContainsFunc(p.claims, func(name string) bool { return !s.ripe[name] }) {
			return s.settle
		}
	}
	return longestWait
}

// inTurn are the machines, those first that drain already: their pods have the first claim to a place. Of those that are idle the empty ones come before those with pods that
// could run elsewhere: an empty one that goes is no place for them.
func (s *state) inTurn() []*snapshot.Machine {
	machines := make([]*snapshot.Machine, len(s.machines))
	for i := range s.machines {
		machines[i] = &s.machines[i]
	}
	slices.SortStableFunc(machines, func(a, b *snapshot.Machine) int { return cmp.Compare(waits(a), waits(b)) })
	return machines
}

func waits(m *snapshot.Machine) int {
	switch {
	case m.Replacing() != "" && marked(m):
		return 0
	case !m.Unused():
		return 1
	case m.Empty():
		return 2
	}
	return 3
}

// counts says that a machine counts towards the disruption budgets, in the total and among those on their way out: one that has not started yet is in
// neither number, as in Karpenter.
func counts(m *snapshot.Machine) bool {
	return m.Initialized() && lifecycle.Of(m.State()).Budgeted
}

// count counts the machines that are on their way out. One that is not ready counts, as in Karpenter: its pods are as good as disrupted.
func (s *state) count() {
	s.draining, s.leaving = map[string]int{}, map[string]int{}
	for i := range s.machines {
		m := &s.machines[i]
		if !counts(m) {
			continue
		}
		draining := m.Deleting() || marked(m) || notReady(m.Node)
		if draining {
			s.draining[m.Pool()]++
		}
		if draining || m.Leaving() {
			s.leaving[m.Pool()]++
		}
	}
}

// follow counts what a step changes.
func (s *state) follow(a *action) {
	if !counts(a.machine) || notReady(a.machine.Node) {
		return // It counts in no case, or in any.
	}
	pool, was := a.machine.Pool(), marked(a.machine)
	switch a.step {
	case taint:
		if !was {
			s.draining[pool]++
			if !a.machine.Leaving() {
				s.leaving[pool]++
			}
		}
	case keep:
		if was {
			s.draining[pool]--
			s.leaving[pool]--
		}
	case hold:
		s.draining[pool]--
	case stop, giveUp:
		if was {
			s.draining[pool]--
		}
		s.leaving[pool]--
	case markIdle, remove, blocked, replace, stay, force, handOver:
	}
}

// notReady says that a Node which has told of its readiness is not ready.
func notReady(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	return i >= 0 && node.Status.Conditions[i].Status != corev1.ConditionTrue
}

// longestWait is how long may pass before machines are looked at again when nothing else asks for it: schedules of budgets open and close.
const longestWait = time.Minute

// next is the next step of a machine that is not being replaced; nil when there is none now.
func (s *state) next(m *snapshot.Machine) (*action, time.Duration) {
	idleSince, disruptingSince := s.since(m, v1alpha1.IdleSinceAnnotation), s.since(m, v1alpha1.DisruptingSinceAnnotation)
	idleAfter, gives := s.idleAfter[m.Pool()]
	if !gives || !m.Started() || !s.idles(m) || s.needs(m) {
		if since(m, v1alpha1.IdleSinceAnnotation) != nil || marked(m) {
			return &action{step: keep, machine: m}, 0
		}
		return nil, 0
	}
	if idleSince == nil {
		return &action{step: markIdle, machine: m}, idleAfter
	}
	if left := idleSince.Add(idleAfter).Sub(s.now); left > 0 {
		return nil, left
	}
	if reason := s.blocks(m, s.draining[m.Pool()]); reason != "" {
		if marked(m) {
			return &action{step: keep, machine: m, reason: reason}, 0
		}
		return &action{step: blocked, machine: m, reason: reason}, 0
	}
	s.idlers = append(s.idlers, m)
	if disruptingSince == nil || !tainted(m.Node) {
		return &action{step: taint, machine: m}, s.settle
	}
	if left := disruptingSince.Add(s.settle).Sub(s.now); left > 0 {
		return nil, left
	}
	return s.removal(m, ""), 0
}

// drained notes which machines are being drained with pods of PodDisruptionBudgets.
func (s *state) drained() {
	s.drains = map[string]string{}
	for i := range s.machines {
		if m := &s.machines[i]; m.Deleting() {
			s.drain(m)
		}
	}
}

func (s *state) drain(m *snapshot.Machine) {
	if s.budgets == nil {
		return
	}
	for _, budget := range s.budgets(m.Pods) {
		if s.drains[budget] == "" {
			s.drains[budget] = m.Claim.Name
		}
	}
}

// removal removes a machine, unless another one is being drained with pods of the same PodDisruptionBudget: each was judged as if the budget were for it alone, and what
// waits for the budget when the drain's time is over is deleted.
func (s *state) removal(m *snapshot.Machine, reason string) *action {
	if s.budgets != nil {
		for _, budget := range s.budgets(m.Pods) {
			other := s.drains[budget]
			if other == "" || other == m.Claim.Name {
				continue
			}
			why := fmt.Sprintf("%s is drained first, which has pods of the same PodDisruptionBudget %s", other, budget)
			if m.Replacing() == "" {
				return &action{step: blocked, machine: m, reason: why}
			}
			if a := s.wait(m, why, true); a.step == giveUp {
				return a
			}
			return &action{step: stay, machine: m, reason: why}
		}
	}
	s.drain(m)
	return &action{step: remove, machine: m, reason: reason}
}

// since reads a time from an annotation of the Node; nil also when it was written by a clock that was ahead: what it began begins anew.
func (s *state) since(m *snapshot.Machine, annotation string) *time.Time {
	t := since(m, annotation)
	if t != nil && t.After(s.now.Add(s.settle)) {
		return nil
	}
	return t
}

// needs says whether an idle machine is needed, for pods that wait or for headroom.
func (s *state) needs(m *snapshot.Machine) bool {
	return s.wanted[m.Node.Name] || s.warm[m.Node.Name] || s.cold[m.Pool()]
}

// idles says whether the machine holds nothing that counts. Pods that only squat on it do not, where pods may be moved.
func (s *state) idles(m *snapshot.Machine) bool { return m.Empty() || s.moves[m.Pool()] && m.Unused() }

// blocks says what keeps an idle machine while so many of its pool are on their way out, it included where it is marked or not ready; "" when nothing does.
func (s *state) blocks(m *snapshot.Machine, draining int) string {
	if reason := s.holdsIdle(m); reason != "" {
		return reason
	}
	if !marked(m) && !notReady(m.Node) {
		draining++
	}
	// Asked again of a machine that is marked: a schedule may have closed the budget meanwhile.
	if allowed := s.allowed[m.Pool()][karpv1.DisruptionReasonEmpty]; draining > allowed {
		return overBudget(m, allowed)
	}
	return ""
}

// holdsIdle says what on an idle machine keeps it from being given back; "" when nothing does.
func (s *state) holdsIdle(m *snapshot.Machine) string {
	if why := cmp.Or(s.keepsIdle[m.Pool()], s.protects(m)); why != "" {
		return why
	}
	if !m.Empty() {
		if why := s.stays(m); why != "" {
			return why
		}
	}
	if s.together == nil {
		return ""
	}
	others := slices.DeleteFunc(slices.Clone(s.idlers), func(o *snapshot.Machine) bool { return o.Claim.Name == m.Claim.Name })
	return s.together(append(others, m), nil)
}

func overBudget(m *snapshot.Machine, allowed int) string {
	return fmt.Sprintf("the disruption budgets of NodePool %s allow %d at present", m.Pool(), allowed)
}

// protects says what on a machine keeps it from being given back; "" when nothing does.
func (s *state) protects(m *snapshot.Machine) string {
	if why := s.protectsNode(m); why != "" {
		return why
	}
	return s.blocker(m.Pods)
}

func (s *state) protectsNode(m *snapshot.Machine) string {
	if m.Node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
		return "the node carries " + karpv1.DoNotDisruptAnnotationKey
	}
	return ""
}

// marked says that the machine carries a mark of being on its way out, also half of it.
func marked(m *snapshot.Machine) bool {
	return m.Node != nil && (tainted(m.Node) || since(m, v1alpha1.DisruptingSinceAnnotation) != nil)
}

// since reads a time from an annotation of the Node; nil when it is not there or no time.
func since(m *snapshot.Machine, annotation string) *time.Time {
	if m.Node == nil {
		return nil
	}
	return timeIn(m.Node.Annotations[annotation])
}

// timeIn reads a time; nil when it is none.
func timeIn(value string) *time.Time {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil
	}
	return &t
}

func tainted(node *corev1.Node) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == v1alpha1.DisruptingTaintKey {
			return true
		}
	}
	return false
}
