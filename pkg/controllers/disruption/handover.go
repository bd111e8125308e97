package disruption

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// A drain evicts all pods of a machine at once, and the scheduler spreads them over whatever has room, so that a layout with little room to spare is not reached:
// the last of the pods, often the largest, find none, and another machine is launched for them. So the pods go in turn: those together that a plan puts on one
// machine, while the others of the pool are steered away from, and the next when they are there. The last of these groups is left to the drain.

// handOver evicts the pods of a machine whose turn it is.
const handOver step = "HandOver"

const (
	// landing is how long pods that were evicted may take to be bound again before others go: a busy scheduler needs less.
	landing = 10 * time.Second
	// persistence is how long a machine of which pods were handed over waits for PodDisruptionBudgets to allow the next ones. Then it keeps those.
	persistence = 2 * time.Minute
)

// home is where a plan puts a pod, and what it takes there.
type home struct {
	node string
	asks planner.Resources
}

// group are pods that a plan puts on one Node.
type group struct {
	node string
	pods []*corev1.Pod
	// largest is what the one of them asks for that asks for the most.
	largest planner.Resources
}

// handed is when pods of a NodePool's machines were last evicted in turn. After a restart it is not known, and the next ones go a little early.
type handed struct {
	at time.Time
	// claims are whose pods they were, owners who makes them again.
	claims map[string]bool
	owners map[types.UID]bool
}

// underway says that pods of the machine have been handed over lately.
func (s *state) underway(m *snapshot.Machine) bool {
	h := s.handed[m.Pool()]
	return h.claims[m.Claim.Name] && s.now.Before(h.at.Add(persistence))
}

// handsOver are the next steps of the machines of a pool that are about to go with pods on them.
func (s *state) handsOver(pool string, machines []*snapshot.Machine) []action {
	groups := s.groups(machines)
	movable := func(pod *corev1.Pod) bool { return s.blocker([]*corev1.Pod{pod}) == "" }
	turn := groups[max(0, slices.IndexFunc(groups, func(g group) bool { return slices.ContainsFunc(g.pods, movable) }))]
	s.targets[pool] = turn.node
	if s.inFlight(pool) || slices.ContainsFunc(s.steered(), func(m *snapshot.Machine) bool { return m.Pool() == pool }) {
		return nil
	}
	var actions []action
	for _, m := range machines {
		pods := slices.DeleteFunc(m.Moving(), func(pod *corev1.Pod) bool { return !movable(pod) || !slices.Contains(turn.pods, pod) })
		c := s.causes[m.Claim.Name]
		last := len(groups) == 1
		switch {
		case last && s.blocker(m.Pods) == "", (last || len(pods) == 0) && c.forceful && s.bounded[pool]:
			actions = append(actions, *s.removal(m, c.reason))
		case len(pods) > 0:
			actions = append(actions, action{step: handOver, machine: m, reason: c.message, pods: pods})
		}
	}
	return actions
}

// groups are the pods that leave machines by where they are to go, those first that find the hardest another place.
func (s *state) groups(machines []*snapshot.Machine) []group {
	homes := s.homes(s.going)
	var groups []group
	for _, m := range machines {
		for _, pod := range m.Moving() {
			h := homes[podName(pod)]
			i := slices.IndexFunc(groups, func(g group) bool { return g.node == h.node })
			if i < 0 {
				i = len(groups)
				groups = append(groups, group{node: h.node})
			}
			groups[i].pods = append(groups[i].pods, pod)
			if bySize(h.asks, groups[i].largest) < 0 {
				groups[i].largest = h.asks
			}
		}
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Or(bySize(a.largest, b.largest), cmp.Compare(a.node, b.node)) })
	return groups
}

// bySize sorts what asks for the most first.
func bySize(a, b planner.Resources) int {
	return cmp.Or(cmp.Compare(b.Replicas, a.Replicas), cmp.Compare(b.MilliCPU, a.MilliCPU), cmp.Compare(b.MemoryBytes, a.MemoryBytes))
}

// inFlight says that pods of the pool which were handed over a moment ago may not be bound yet.
func (s *state) inFlight(pool string) bool {
	h := s.handed[pool]
	switch {
	case s.now.Before(h.at.Add(soon)):
		return true // Who makes them again may not have done so.
	case !s.now.Before(h.at.Add(landing)):
		return false
	}
	return slices.ContainsFunc(s.waiting, func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOf(pod)
		return owner != nil && h.owners[owner.UID]
	})
}

// hand notes that pods of a machine were evicted in turn.
func (c *Controller) hand(s *state, m *snapshot.Machine, pods []*corev1.Pod) {
	h := c.handed[m.Pool()]
	if !h.at.Equal(s.now) {
		h.owners = map[types.UID]bool{}
	}
	if h.claims == nil || !s.now.Before(h.at.Add(persistence)) {
		h.claims = map[string]bool{}
	}
	h.at, h.claims[m.Claim.Name] = s.now, true
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			h.owners[owner.UID] = true
		}
	}
	c.handed[m.Pool()] = h
}
