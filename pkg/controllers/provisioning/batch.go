package provisioning

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// batch gathers waiting pods, so that pods created together are planned together: it is due when no new pod has come for the idle
// duration, or when the first has waited for the longest. Pods whose machine is lost, was refused, or was held
// back by the bound on launches do not wait for those that come. It is safe for concurrent use.
type batch struct {
	idle, longest time.Duration

	mu          sync.Mutex
	hurried     bool
	seen        sets.Set[types.UID]
	first, last time.Time
}

func newBatch(idle, longest time.Duration) *batch {
	return &batch{idle: idle, longest: longest, seen: sets.New[types.UID]()}
}

// add notes a waiting pod; one that was seen before does not hold the batch open.
func (b *batch) add(pod types.UID, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen.Has(pod) {
		return
	}
	b.seen.Insert(pod)
	if b.first.IsZero() {
		b.first = now
	}
	b.last = now
}

// due is how long the batch is still open; it closes it when that is nothing.
func (b *batch) due(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first.IsZero() || b.hurried {
		b.first, b.last = time.Time{}, time.Time{}
		return 0
	}
	end := b.last.Add(b.idle)
	if limit := b.first.Add(b.longest); limit.Before(end) {
		end = limit
	}
	if wait := end.Sub(now); wait > 0 {
		return wait
	}
	b.first, b.last = time.Time{}, time.Time{}
	return 0
}

// hurry has the batch due at once, until planned is called.
func (b *batch) hurry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hurried = true
}

func (b *batch) planned() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hurried = false
}

// keep forgets pods that wait no more.
func (b *batch) keep(waiting sets.Set[types.UID]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = b.seen.Intersection(waiting)
}
