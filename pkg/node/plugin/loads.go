package plugin

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/alloc"
)

// loads reads what GPUs do, and never has a pod wait for a GPU that does not answer.
type loads struct {
	reader UsageReader
	clock  clock.Clock

	mu   sync.Mutex
	last map[string]alloc.Load
	// done is closed when the reading that is under way ends; nil when none is.
	done chan struct{}
}

// loadPatience is how long a pod waits for fresh readings; after it the last ones do.
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
		return nil // There is nothing to choose.
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

// read starts reading unless that is under way already.
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
