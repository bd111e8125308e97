package plugin

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/alloc"
)

// loads reads the loads of GPUs. Pods wait only briefly for a GPU that does not answer.
type loads struct {
	reader UsageReader
	clock  clock.Clock

	mu   sync.Mutex
	last map[string]alloc.Load
	// done is closed when the current reading ends. It is nil if there is none.
	done chan struct{}
}

// loadPatience is how long a pod waits for fresh loads. After it, the previous ones are used.
const loadPatience = 100 * time.Millisecond

func newLoads(reader UsageReader, c clock.Clock) *loads {
	return &loads{reader: reader, clock: c, last: map[string]alloc.Load{}}
}

func (l *loads) of(ctx context.Context, ids []string) map[string]alloc.Load {
	if l.reader == nil {
		return nil
	}
	uuids := map[string]bool{}
	for _, id := range ids {
		uuids[alloc.UUID(id)] = true
	}
	if len(uuids) < 2 {
		return nil // There is at most one GPU to choose from.
	}
	timer := l.clock.NewTimer(loadPatience)
	defer timer.Stop()
	select {
	case <-l.read(uuids):
	case <-timer.C():
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.last)
}

// read starts a reading unless one is in progress. The channel is closed when it ends.
func (l *loads) read(uuids map[string]bool) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done != nil {
		return l.done
	}
	done := make(chan struct{})
	l.done = done
	go func() {
		for uuid := range uuids {
			u, err := l.reader.Usage(uuid)
			l.mu.Lock()
			if err != nil {
				delete(l.last, uuid)
			} else {
				l.last[uuid] = alloc.Load{FreeMemoryMiB: u.MemoryFreeMiB, Percent: u.GPUPercent}
			}
			l.mu.Unlock()
		}
		l.mu.Lock()
		l.done = nil
		l.mu.Unlock()
		close(done)
	}()
	return done
}
