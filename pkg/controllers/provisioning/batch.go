package provisioning

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// batch gathers waiting pods, so that pods created together are planned together: it is due when no new pod has come for the idle
// duration, or when the first has waited for the longest. Pods that found room meanwhile do not count. Pods whose machine is lost or was refused do not wait for
// those that come, and a plan whose launches are held back goes on without those. It is safe for concurrent use.
type batch struct {
	idle, longest time.Duration

	mu       sync.Mutex
	hurried  bool
	heldBack bool
	// seen are the pods that wait, and whether a plan was for them.
	seen map[types.UID]bool
	// came is when the pods that it gathers came.
	came map[types.UID]time.Time
}

func newBatch(idle, longest time.Duration) *batch {
	return &batch{idle: idle, longest: longest, seen: map[types.UID]bool{}, came: map[types.UID]time.Time{}}
}

// add notes a waiting pod; one that was seen before does not hold the batch open.
func (b *batch) add(pod types.UID, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[pod]; ok {
		return
	}
	b.seen[pod] = false
	b.came[pod] = now
}

// drop has a pod that waits no more hold the batch open no longer.
func (b *batch) drop(pod types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.came, pod)
}

// due is how long the batch is still open; it closes it when that is nothing.
func (b *batch) due(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.came) == 0 || b.hurried {
		clear(b.came)
		return 0
	}
	var first, last time.Time
	for _, at := range b.came {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	end := last.Add(b.idle)
	if limit := first.Add(b.longest); limit.Before(end) {
		end = limit
	}
	if wait := end.Sub(now); wait > 0 {
		return wait
	}
	clear(b.came)
	return 0
}

// hurry has the batch due at once, whoever else comes, until planned is called.
func (b *batch) hurry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hurried = true
}

// holdBack says that a plan has launches that are still to be made, until planned is called.
func (b *batch) holdBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heldBack = true
}

// gathering are the pods for which the batch is still open, and whether there is something to plan for without them.
func (b *batch) gathering() (pods sets.Set[types.UID], others bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sets.KeySet(b.came), b.heldBack
}

func (b *batch) planned() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hurried, b.heldBack = false, false
}

// keep forgets pods that wait no more.
func (b *batch) keep(waiting sets.Set[types.UID]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.seen, func(pod types.UID, _ bool) bool { return !waiting.Has(pod) })
}

// take notes that a plan is for pods, which hold the batch open no longer. It returns the names of those that no plan was for before.
func (b *batch) take(pods []*corev1.Pod) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var fresh []string
	for _, pod := range pods {
		if !b.seen[pod.UID] {
			fresh = append(fresh, pod.Namespace+"/"+pod.Name)
		}
		b.seen[pod.UID] = true
		delete(b.came, pod.UID)
	}
	return fresh
}
