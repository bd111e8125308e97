package disruption

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
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
	// reason is told with blocked.
	reason string
}

// state is what the decision depends on.
type state struct {
	now      time.Time
	machines []snapshot.Machine
	// idleAfter is how long a pool's machines may idle; a pool that is missing here never gives any back.
	idleAfter map[string]time.Duration
	// budget is how many machines of a pool may be on their way out at once.
	budget map[string]int
	// wanted are the Nodes that waiting pods will go to.
	wanted map[string]bool
	// settle is how long a tainted Node is watched before it is given back.
	settle time.Duration
	// blocker says what keeps a node with the pods from draining; "" when nothing does.
	blocker func([]*corev1.Pod) string
}

// decide says what to do about each machine, in the order of their names, and when to look again at the latest.
func decide(s state) (actions []action, again time.Duration) {
	again = longestWait
	leaving := map[string]int{}
	for i := range s.machines {
		if m := &s.machines[i]; m.Deleting() || marked(m) {
			leaving[m.Pool()]++
		}
	}
	for i := range s.machines {
		m := &s.machines[i]
		if m.Deleting() || m.Node == nil {
			continue
		}
		a, wait := s.next(m, leaving)
		if a != nil {
			switch {
			case a.step == taint && !marked(m):
				leaving[m.Pool()]++
			case a.step == keep && marked(m):
				leaving[m.Pool()]--
			}
			actions = append(actions, *a)
		}
		if wait > 0 {
			again = min(again, wait)
		}
	}
	return actions, again
}

// longestWait is how long may pass before idle machines are looked at again when nothing else asks for it: schedules of budgets open and close.
const longestWait = time.Minute

func (s *state) next(m *snapshot.Machine, leaving map[string]int) (*action, time.Duration) {
	idleSince, disruptingSince := since(m, v1alpha1.IdleSinceAnnotation), since(m, v1alpha1.DisruptingSinceAnnotation)
	idleAfter, gives := s.idleAfter[m.Pool()]
	if !gives || !m.Initialized() || m.AwaitsReplicas() || !m.Empty() || s.wanted[m.Node.Name] {
		if idleSince != nil || marked(m) {
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
	if reason := s.blocks(m, leaving[m.Pool()]); reason != "" {
		if marked(m) {
			return &action{step: keep, machine: m, reason: reason}, 0
		}
		return &action{step: blocked, machine: m, reason: reason}, 0
	}
	if disruptingSince == nil || !tainted(m.Node) {
		return &action{step: taint, machine: m}, s.settle
	}
	if left := disruptingSince.Add(s.settle).Sub(s.now); left > 0 {
		return nil, left
	}
	return &action{step: remove, machine: m}, 0
}

// blocks says what keeps an idle machine while so many of its pool are on their way out, it included where it is marked; "" when nothing does.
func (s *state) blocks(m *snapshot.Machine, leaving int) string {
	if reason := s.protects(m); reason != "" {
		return reason
	}
	if !marked(m) {
		leaving++
	}
	// Asked again of a machine that is marked: a schedule may have closed the budget meanwhile.
	if budget := s.budget[m.Pool()]; leaving > budget {
		return fmt.Sprintf("the disruption budgets of NodePool %s allow %d at present", m.Pool(), budget)
	}
	return ""
}

// protects says what on a machine keeps it from being given back; "" when nothing does.
func (s *state) protects(m *snapshot.Machine) string {
	if m.Node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
		return "the node carries " + karpv1.DoNotDisruptAnnotationKey
	}
	return s.blocker(m.Pods)
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
	t, err := time.Parse(time.RFC3339, m.Node.Annotations[annotation])
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
