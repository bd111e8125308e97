package provisioning

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// batch gathers pending pods, so that pods which are created together are planned together. It is due when no new pod has arrived for the idle
// duration, or when the first one has waited for the maximum duration. Pods that are bound meanwhile do not count. It is due immediately for pods whose
// machine is lost or was refused. A plan with launches that are held back continues without the gathered pods. Pods that the scheduler has not tried yet
// do not begin a batch, but it is not idle while they come. The scheduler's verdict on them is no arrival: a burst is planned for a second after its last pod, not
// when the scheduler has tried all of them. It is safe for concurrent use.
type batch struct {
	idle, longest time.Duration

	mu       sync.Mutex
	hurried  bool
	heldBack bool
	// closed reports whether a batch was closed that no plan has included yet. Before the first plan, it is true.
	closed bool
	// seen has the pending pods, and whether a plan included them.
	seen map[types.UID]bool
	// came is when each gathered pod arrived. since is when each pod arrived that no plan has included yet.
	came, since map[types.UID]time.Time
	// untried has the pods that the scheduler has not tried, with the time at which each arrived.
	untried map[types.UID]time.Time
}

func newBatch(idle, longest time.Duration) *batch {
	return &batch{
		idle: idle, longest: longest, closed: true, seen: map[types.UID]bool{}, came: map[types.UID]time.Time{}, since: map[types.UID]time.Time{}, untried: map[types.UID]time.Time{},
	}
}

// add records a pending pod. A pod that was added before does not extend the batch.
func (b *batch) add(pod types.UID, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[pod]; ok {
		return
	}
	b.seen[pod] = false
	b.came[pod], b.since[pod] = now, now
	if at, ok := b.untried[pod]; ok { // The verdict of the scheduler says nothing about further pods.
		b.came[pod] = at
	}
}

// extend keeps an open batch open for a pod that the scheduler has not tried yet. Later changes of the pod do not count.
func (b *batch) extend(pod types.UID, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.untried[pod]; !ok && !b.seen[pod] {
		b.untried[pod] = now
	}
}

func (b *batch) close() {
	if len(b.came) == 0 {
		return
	}
	b.closed = true
	clear(b.came)
	clear(b.untried)
}

// drop removes a pod that is no longer pending.
func (b *batch) drop(pod types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.came, pod)
	delete(b.untried, pod)
}

// due returns how long the batch is still open. It closes the batch if that is 0.
func (b *batch) due(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.came) == 0 || b.hurried {
		b.close()
		return 0
	}
	first, last := time.Time{}, time.Time{}
	for _, at := range b.came {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		last = later(last, at)
	}
	for _, at := range b.untried {
		last = later(last, at)
	}
	end := last.Add(b.idle)
	if limit := first.Add(b.longest); limit.Before(end) {
		end = limit
	}
	if wait := end.Sub(now); wait > 0 {
		return wait
	}
	b.close()
	return 0
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// hurry makes the batch due immediately, until planned is called.
func (b *batch) hurry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hurried = true
}

// holdBack records that a plan has remaining launches, until planned is called.
func (b *batch) holdBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heldBack = true
}

// urgent reports whether a plan is due now or soon: for a batch, for pods whose machine is lost, or for launches that were held back.
func (b *batch) urgent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hurried || b.heldBack || b.closed || len(b.came) > 0
}

// gathering returns the pods for which the batch is still open, if there are launches to make without them.
func (b *batch) gathering() (pods sets.Set[types.UID], others bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.heldBack {
		return nil, false
	}
	return sets.KeySet(b.came), true
}

// planned records that a plan is being made. It reports whether that is the first plan after a batch was closed.
func (b *batch) planned() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed = b.closed
	b.hurried, b.heldBack, b.closed = false, false, false
	return closed
}

// keep forgets all pods except the pending ones.
func (b *batch) keep(waiting sets.Set[types.UID]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.seen, func(pod types.UID, _ bool) bool { return !waiting.Has(pod) })
	maps.DeleteFunc(b.since, func(pod types.UID, _ time.Time) bool { return !waiting.Has(pod) })
}

// take records that a plan includes the pods, which no longer keep the batch open. It returns the names of those that no earlier plan included, and
// when they arrived.
func (b *batch) take(pods []*corev1.Pod) (fresh []string, came []time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pod := range pods {
		if !b.seen[pod.UID] {
			fresh = append(fresh, pod.Namespace+"/"+pod.Name)
		}
		if at, ok := b.since[pod.UID]; ok {
			came = append(came, at)
		}
		b.seen[pod.UID] = true
		delete(b.came, pod.UID)
		delete(b.since, pod.UID)
	}
	return fresh, came
}
