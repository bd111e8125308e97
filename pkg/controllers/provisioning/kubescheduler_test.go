package provisioning

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// kubeScheduler is a model of the default scheduler of Kubernetes 1.36 for pods that ask for processors, memory and replicas and have one priority: its queues with
// their hints and backoff (backend/queue), nominated pods that count as running for others (RunFilterPluginsWithNominatedPods), the scores of NodeResourcesFit and
// NodeResourcesBalancedAllocation, nominations that are cleared when no node has room (framework/preemption), and one attempt at a time, which waits for its write.
type kubeScheduler struct {
	w      *town
	random *rand.Rand
	now    time.Time
	pods   map[string]*queued
	nodes  map[string]*seatsOf
	names  []string // of nodes, sorted
	// tokens are the requests that may be sent at once, as they were at filled.
	tokens float64
	filled time.Time
	// epoch changes with everything that a message of an attempt that failed tells of.
	epoch int
	binds []bind
}

const (
	// attemptTakes and writeTakes are the times of an attempt and of a write.
	attemptTakes, writeTakes = 2 * time.Millisecond, 5 * time.Millisecond
	// qps and burst are the limits of the scheduler's client.
	qps, burst = 50.0, 100.0
)

type queueName int

const (
	active queueName = iota
	backoff
	erred // it is tried again when its backoff ends, and not before
	unschedulable
	assumed
)

// queued is a pod of the scheduler.
type queued struct {
	pod       *corev1.Pod
	asks      vector
	nominated string // as the scheduler knows it
	queue     queueName
	at        time.Time // when it came into the queues last
	failures  int
	expiry    time.Time
	fit, tain bool // what has rejected it
	told      int  // the epoch of its last message
}

type seatsOf struct {
	has, used, held vector
	exposed, open   bool
}

type bind struct {
	at   time.Time
	pod  *queued
	node string
}

func newKubeScheduler(w *town) *kubeScheduler {
	return &kubeScheduler{w: w, random: rand.New(rand.NewPCG(7, 7)), now: w.clock.Now(), filled: w.clock.Now(), tokens: burst, pods: map[string]*queued{}, nodes: map[string]*seatsOf{}}
}

func (s *kubeScheduler) podCame(pod *corev1.Pod) {
	s.pods[pod.Name] = &queued{pod: pod, asks: asked(pod), at: s.w.clock.Now()}
}

// nominate has a pod's nomination change in the API.
func (s *kubeScheduler) nominate(p *queued, node string) {
	was := p.pod.Status.NominatedNodeName
	p.pod.Status.NominatedNodeName = node
	if p.queue != assumed {
		s.hold(p, node)
	}
	if was != "" && was != node {
		s.requeue(func(q *queued) bool { return q.fit }) // As if the pod were deleted on the node.
	}
}

// hold has the scheduler count a pod as running on a node.
func (s *kubeScheduler) hold(p *queued, node string) {
	if n := s.nodes[p.nominated]; n != nil {
		n.held.add(p.asks, -1)
	}
	p.nominated = node
	if n := s.nodes[node]; n != nil {
		n.held.add(p.asks, 1)
	}
}

func (s *kubeScheduler) nodeCame(node *corev1.Node) {
	n := &seatsOf{has: vectorOf(node.Status.Allocatable)}
	for _, p := range s.pods {
		if p.nominated == node.Name {
			n.held.add(p.asks, 1)
		}
	}
	s.nodes[node.Name] = n
	s.names = slices.Sorted(maps.Keys(s.nodes))
	s.epoch++
}

func (s *kubeScheduler) nodeExposes(name string) {
	n := s.nodes[name]
	n.exposed = true
	s.epoch++
	s.requeue(func(q *queued) bool { return q.fit && n.has.holds(q.asks) })
}

func (s *kubeScheduler) nodeOpens(name string) {
	s.nodes[name].open = true
	s.epoch++
	s.requeue(func(q *queued) bool { return q.tain })
}

// requeue has pods that an event may make schedulable be tried again.
func (s *kubeScheduler) requeue(worth func(*queued) bool) {
	for _, q := range s.pods {
		if q.queue != unschedulable || !worth(q) {
			continue
		}
		q.queue = active
		if s.backingOff(q) {
			q.queue = backoff
		}
	}
}

func (s *kubeScheduler) backingOff(q *queued) bool {
	return !q.expiry.Before(s.now.Truncate(time.Second))
}

// run has the scheduler work until a time.
func (s *kubeScheduler) run(until time.Time) {
	for {
		s.bound(s.now)
		q := s.pop()
		if q == nil || s.now.After(until) {
			break
		}
		s.try(q)
	}
	if s.now.Before(until) {
		s.now = until
	}
	s.bound(until)
}

// bound has the API know what was bound.
func (s *kubeScheduler) bound(now time.Time) {
	s.binds = slices.DeleteFunc(s.binds, func(b bind) bool {
		if b.at.After(now) {
			return false
		}
		b.pod.pod.Spec.NodeName, b.pod.pod.Status = b.node, corev1.PodStatus{Phase: corev1.PodRunning}
		delete(s.pods, b.pod.pod.Name)
		s.w.podChanged(b.pod.pod)
		return true
	})
}

// pop is the next pod to try: of those that are active the one that has waited for the longest, or else the one whose backoff ends first.
func (s *kubeScheduler) pop() *queued {
	var best *queued
	for _, q := range s.pods {
		if (q.queue == backoff || q.queue == erred) && !s.backingOff(q) {
			q.queue = active
		}
		if q.queue != active && q.queue != backoff {
			continue
		}
		if best == nil || q.queue < best.queue || q.queue == best.queue && s.before(q, best) {
			best = q
		}
	}
	return best
}

func (s *kubeScheduler) before(a, b *queued) bool {
	if a.queue == backoff && !a.expiry.Equal(b.expiry) {
		return a.expiry.Before(b.expiry)
	}
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.pod.Name < b.pod.Name
}

// request takes the time of a request from the limiter, and returns when it is sent.
func (s *kubeScheduler) request() time.Time {
	if s.now.After(s.filled) {
		s.tokens = min(burst, s.tokens+qps*s.now.Sub(s.filled).Seconds())
		s.filled = s.now
	}
	s.tokens--
	if s.tokens >= 0 {
		return s.now
	}
	return s.now.Add(time.Duration(-s.tokens / qps * float64(time.Second)))
}

// try is one attempt.
func (s *kubeScheduler) try(q *queued) {
	s.now = s.now.Add(attemptTakes)
	q.fit, q.tain = false, false
	node := ""
	if n := s.nodes[q.nominated]; n != nil && q.pod.Status.NominatedNodeName == q.nominated && s.admits(q.nominated, q) {
		node = q.nominated
	}
	if node == "" {
		node = s.best(q)
	}
	if node != "" {
		s.hold(q, "")
		s.nodes[node].used.add(q.asks, 1)
		q.queue = assumed
		s.epoch++
		s.binds = append(s.binds, bind{s.request().Add(writeTakes), q, node})
		return
	}
	q.queue, q.at = unschedulable, s.now
	if len(s.nodes) == 0 {
		q.queue = erred
	}
	q.failures++
	q.expiry = s.now.Add(min(10*time.Second, time.Second<<min(q.failures-1, 5))).Truncate(time.Second)
	clears := q.pod.Status.NominatedNodeName != "" && len(s.nodes) > 0
	if !clears && q.told == s.epoch {
		return
	}
	q.told = s.epoch
	if clears {
		s.hold(q, "")
	}
	s.now = s.request().Add(writeTakes)
	if clears {
		s.nominate(q, "")
	}
	s.w.podChanged(q.pod)
}

// admits says whether a node has room for a pod beside those that are nominated for it.
func (s *kubeScheduler) admits(name string, q *queued) bool {
	n := s.nodes[name]
	if !n.open {
		q.tain = true
		return false
	}
	free := n.has
	free.add(n.used, -1)
	free.add(n.held, -1)
	if q.nominated == name {
		free.add(q.asks, 1)
	}
	if !free.holds(q.asks) {
		q.fit = true
		return false
	}
	return true
}

// best is the node with the highest score.
func (s *kubeScheduler) best(q *queued) string {
	best, most, ties := "", int64(-1), 0
	for _, name := range s.names {
		if !s.admits(name, q) {
			continue
		}
		score := s.nodes[name].score(q.asks)
		switch {
		case score > most:
			best, most, ties = name, score, 1
		case score == most:
			if ties++; s.random.IntN(ties) == 0 {
				best = name
			}
		}
	}
	return best
}

// score is that of LeastAllocated and of BalancedAllocation.
func (n *seatsOf) score(asks vector) int64 {
	part := func(used, has int64) float64 { return min(1, float64(used)/float64(has)) }
	std := func(u vector) int64 {
		return int64((1 - math.Abs(part(u.milliCPU, n.has.milliCPU)-part(u.memory, n.has.memory))/2) * 100)
	}
	with := n.used
	with.add(asks, 1)
	least := ((n.has.milliCPU-with.milliCPU)*100/n.has.milliCPU + (n.has.memory-with.memory)*100/n.has.memory) / 2
	return least + 50 + (50+std(with)-std(n.used))/2
}
