package provisioning

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// kubeScheduler is a model of the default scheduler of Kubernetes 1.36 for pods that request CPU, memory and replicas and have one priority. It models the
// queues with their hints and backoff (backend/queue); nominated pods, which count as running for other pods (RunFilterPluginsWithNominatedPods); the scores of
// NodeResourcesFit and NodeResourcesBalancedAllocation; the removal of nominations when no node has room (framework/preemption); and one attempt at a time,
// which waits for its write.
type kubeScheduler struct {
	w      *fakeCluster
	random *rand.Rand
	now    time.Time
	pods   map[string]*queued
	nodes  map[string]*seatsOf
	names  []string // of the nodes, sorted
	// tokens is the number of requests that could be sent immediately at the time filled.
	tokens float64
	filled time.Time
	// epoch changes whenever the message of a failed attempt would change.
	epoch int
	binds []bind
}

const (
	// attemptTakes and writeTakes are the durations of an attempt and of a write.
	attemptTakes, writeTakes = 2 * time.Millisecond, 5 * time.Millisecond
	// qps and burst are the rate limits of the scheduler's client.
	qps, burst = 50.0, 100.0
)

type queueName int

const (
	active queueName = iota
	backoff
	erred // retried when its backoff ends, and not before
	unschedulable
	assumed
)

// queued is a pod in the scheduler's queues.
type queued struct {
	pod       *corev1.Pod
	asks      vector
	nominated string // as the scheduler knows it
	queue     queueName
	at        time.Time // when it last entered the queues
	failures  int
	expiry    time.Time
	fit, tain bool // what rejected it: resources, taints
	told      int  // the epoch of its last message, or never
}

const never = -1

type seatsOf struct {
	has, used, held vector
	exposed, open   bool
}

type bind struct {
	at   time.Time
	pod  *queued
	node string
}

func newKubeScheduler(w *fakeCluster) *kubeScheduler {
	return &kubeScheduler{w: w, random: rand.New(rand.NewPCG(7, 7)), now: w.clock.Now(), filled: w.clock.Now(), tokens: burst, pods: map[string]*queued{}, nodes: map[string]*seatsOf{}}
}

func (s *kubeScheduler) podCame(pod *corev1.Pod) {
	q := &queued{pod: pod, asks: asked(pod), at: s.w.clock.Now()}
	if len(pod.Status.Conditions) == 0 {
		q.told = never
	}
	s.pods[pod.Name] = q
}

// nominate changes a pod's nomination in the API.
func (s *kubeScheduler) nominate(p *queued, node string) {
	was := p.pod.Status.NominatedNodeName
	p.pod.Status.NominatedNodeName = node
	if p.queue != assumed {
		s.hold(p, node)
	}
	if was != "" && was != node {
		s.requeue(func(q *queued) bool { return q.fit }) // The scheduler handles this as if a pod on the node were deleted.
	}
}

// hold makes the scheduler count a pod as running on a node.
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

// requeue retries pods that an event may make schedulable.
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

// run runs the scheduler until a time.
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

// bound writes the bindings that have completed to the API.
func (s *kubeScheduler) bound(now time.Time) {
	s.binds = slices.DeleteFunc(s.binds, func(b bind) bool {
		if b.at.After(now) {
			return false
		}
		before := b.pod.pod.DeepCopy()
		b.pod.pod.Spec.NodeName, b.pod.pod.Status = b.node, corev1.PodStatus{Phase: corev1.PodRunning}
		delete(s.pods, b.pod.pod.Name)
		s.w.tried(before, b.pod.pod)
		return true
	})
}

// pop returns the next pod to try: the active pod that has waited longest, or else the pod whose backoff ends first.
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

// request takes a token from the rate limiter and returns when the request is sent.
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

// try makes one scheduling attempt.
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
	before := q.pod.DeepCopy()
	if clears {
		s.nominate(q, "")
	}
	q.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	s.w.tried(before, q.pod)
}

// admits reports whether a node has room for a pod besides the pods that are nominated for it.
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

// best returns the node with the highest score.
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

// score returns the sum of the LeastAllocated and BalancedAllocation scores.
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
