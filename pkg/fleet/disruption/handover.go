package disruption

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/fleet/disruption/reason"
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
	next := handed{at: now, claims: map[string]bool{claim: true}, owners: map[types.UID]bool{}}
	if h.at.Equal(now) {
		maps.Copy(next.owners, h.owners)
	}
	if now.Before(h.at.Add(evictionPatience)) {
		maps.Copy(next.claims, h.claims)
	}
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			next.owners[owner.UID] = true
		}
	}
	return next
}

// underway reports whether pods of the machine were handed over recently.
func (d *decider) underway(m *reason.Machine) bool {
	h := d.handed[m.Pool()]
	return h.claims[m.Claim.Name] && d.now.Before(h.at.Add(evictionPatience))
}

// nextHandOvers returns the commands for the machines of a pool that are due and have pods, and the name of the Node to which pods are handed over next.
func (d *decider) nextHandOvers(pool string, p *progress) (commands []Command, target string) {
	groups := d.groups(p.due[pool], p.going)
	movable := func(pod *corev1.Pod) bool { return d.pods.Blocker([]*corev1.Pod{pod}) == "" }
	turn := groups[max(0, slices.IndexFunc(groups, func(g group) bool { return slices.ContainsFunc(g.pods, movable) }))]
	steers := d.toSteer(map[string]string{pool: turn.node})
	if d.inFlight(pool) || slices.ContainsFunc(steers, func(m *reason.Machine) bool { return m.Pool() == pool }) {
		return nil, turn.node
	}
	for _, m := range p.due[pool] {
		pods := slices.DeleteFunc(m.Moving(), func(pod *corev1.Pod) bool { return !movable(pod) || !slices.Contains(turn.pods, pod) })
		c, last := m.Candidate, len(groups) == 1
		switch {
		case last && d.pods.Blocker(m.Pods) == "", (last || len(pods) == 0) && c.Eventual && m.NodePool.DrainBounded:
			removal := d.removal(m, c.Word, p.drains)
			if removal.Step == Remove {
				d.drain(p.drains, m)
			}
			commands = append(commands, *removal)
		case len(pods) > 0:
			commands = append(commands, Command{Step: HandOver, Machine: m, Reason: c.Message, Pods: pods, Target: turn.node})
		}
	}
	return commands, turn.node
}

// groups returns the pods of the machines, grouped by the Node to which they should move, the group with the largest pod first.
func (d *decider) groups(machines []*reason.Machine, going []string) []group {
	placements := d.whatIf.placements(going)
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
func (d *decider) inFlight(pool string) bool {
	h := d.handed[pool]
	switch {
	case d.now.Before(h.at.Add(soon)):
		return true // Their controllers may not have recreated them yet.
	case !d.now.Before(h.at.Add(rebindWithin)):
		return false
	}
	return slices.ContainsFunc(d.waiting, func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOf(pod)
		return owner != nil && h.owners[owner.UID]
	})
}
