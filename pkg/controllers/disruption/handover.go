package disruption

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/planner"
)

// A drain evicts all pods of a machine at once, and the scheduler spreads them over all nodes with room. That defeats a layout with little spare room:
// the last pods, which are often the largest, find no room, and another machine is launched for them. So Karve evicts the pods in groups, one for each
// node on which the plan places pods, and meanwhile steers other pods of the pool away. The next group follows when the pods are bound. The drain
// evicts the last group.

const (
	// rebindWithin is how long evicted pods may take to be bound before the next group is evicted.
	rebindWithin = 10 * time.Second
	// evictionPatience is how long a machine whose pods are handed over waits for PodDisruptionBudgets to allow the next evictions. After that, the remaining
	// pods stay.
	evictionPatience = 2 * time.Minute
)

// placement is the node on which a plan places a pod, and the pod's requests.
type placement struct {
	node string
	asks planner.Resources
}

// group has the pods that a plan places on one Node.
type group struct {
	node string
	pods []*corev1.Pod
	// largest has the requests of the largest pod.
	largest planner.Resources
}

// handed records when pods of a NodePool's machines were last evicted in groups.
type handed struct {
	at time.Time
	// claims holds the NodeClaims of the machines that they were on. owners holds the controllers that recreate them.
	claims map[string]bool
	owners map[types.UID]bool
}

// note returns h after an eviction of pods of a machine.
func (h handed) note(claim string, pods []*corev1.Pod, now time.Time) handed {
	if !h.at.Equal(now) {
		h.owners = map[types.UID]bool{}
	}
	if h.claims == nil || !now.Before(h.at.Add(evictionPatience)) {
		h.claims = map[string]bool{}
	}
	h.at, h.claims[claim] = now, true
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			h.owners[owner.UID] = true
		}
	}
	return h
}

// underway reports whether pods of the machine were handed over recently.
func (s *pass) underway(m *reason.Machine) bool {
	h := s.pool(m).handed
	return h.claims[m.Claim.Name] && s.now.Before(h.at.Add(evictionPatience))
}

// nextHandOvers returns the commands for the machines of a pool that are due and have pods.
func (s *pass) nextHandOvers(p *pool) []command {
	groups := s.groups(p.leavers)
	movable := func(pod *corev1.Pod) bool { return s.pods.Blocker([]*corev1.Pod{pod}) == "" }
	turn := groups[max(0, slices.IndexFunc(groups, func(g group) bool { return slices.ContainsFunc(g.pods, movable) }))]
	p.target = &turn.node
	if s.inFlight(p) || slices.ContainsFunc(s.toSteer(), func(m *reason.Machine) bool { return m.Pool() == p.Name }) {
		return nil
	}
	var commands []command
	for _, m := range p.leavers {
		pods := slices.DeleteFunc(m.Moving(), func(pod *corev1.Pod) bool { return !movable(pod) || !slices.Contains(turn.pods, pod) })
		c, last := m.Candidate, len(groups) == 1
		switch {
		case last && s.pods.Blocker(m.Pods) == "", (last || len(pods) == 0) && c.Eventual && p.DrainBounded:
			commands = append(commands, *s.removal(m, c.Word))
		case len(pods) > 0:
			commands = append(commands, command{step: handOver, machine: m, reason: c.Message, pods: pods})
		}
	}
	return commands
}

// groups returns the pods of the machines, grouped by the Node to which they should move, the group with the largest pod first.
func (s *pass) groups(machines []*reason.Machine) []group {
	placements := s.whatIf.placements(s.going)
	var groups []group
	for _, m := range machines {
		for _, pod := range m.Moving() {
			h := placements[podName(pod)]
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

// bySize orders requests from largest to smallest.
func bySize(a, b planner.Resources) int {
	return cmp.Or(cmp.Compare(b.Replicas, a.Replicas), cmp.Compare(b.MilliCPU, a.MilliCPU), cmp.Compare(b.MemoryBytes, a.MemoryBytes))
}

// inFlight reports whether pods of the pool that were just handed over may not be bound yet.
func (s *pass) inFlight(p *pool) bool {
	h := p.handed
	switch {
	case s.now.Before(h.at.Add(soon)):
		return true // Their controllers may not have recreated them yet.
	case !s.now.Before(h.at.Add(rebindWithin)):
		return false
	}
	return slices.ContainsFunc(s.waiting, func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOf(pod)
		return owner != nil && h.owners[owner.UID]
	})
}
