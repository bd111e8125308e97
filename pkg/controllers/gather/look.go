package gather

import (
	"context"
	"errors"
	"maps"
	"time"

	"karve.sh/karve/pkg/snapshot"
)

// recent is the largest age of the result that Recent returns.
const recent = 2 * time.Second

// look is one read of the cluster, for all callers that asked for it before it began.
type look struct {
	done    chan struct{}
	cluster *snapshot.Cluster
	err     error
	// began is when it began, and changes is the number of changes that were counted by then.
	began   time.Time
	changes uint64
}

// Cluster reads everything that decisions depend on. It reads NodeClaims and the cloud's node classes from the API server, and from the caches what has
// changed. Callers that arrive during a read wait for the next one and share it. So a read always begins after its callers asked. The objects are shared, and
// callers must not change them.
func (g *Gatherer) Cluster(ctx context.Context) (*snapshot.Cluster, error) {
	l, first := g.join()
	if first {
		g.take(ctx, l)
	}
	select {
	case <-l.done:
		return g.hand(l)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Recent returns the latest result of Cluster if it is at most two seconds old and no object in the caches has changed since it began. Otherwise it calls
// Cluster. It is for reports, and for callers that check again before they act.
func (g *Gatherer) Recent(ctx context.Context) (*snapshot.Cluster, error) {
	g.mu.Lock()
	l := g.latest
	g.mu.Unlock()
	if l == nil || g.changes == nil || g.Clock.Since(l.began) > recent || g.changes.all() != l.changes {
		return g.Cluster(ctx)
	}
	return g.hand(l)
}

// join returns the look that has not begun. If first is true, the caller must call take.
func (g *Gatherer) join() (l *look, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next != nil {
		return g.next, false
	}
	g.next = &look{done: make(chan struct{}), err: errors.New("the look at the cluster did not end")}
	return g.next, true
}

// take reads the cluster once the look before has ended.
func (g *Gatherer) take(ctx context.Context, l *look) {
	g.looking.Lock()
	defer g.looking.Unlock()
	defer close(l.done)
	g.mu.Lock()
	g.next = nil // Callers from now on may know of changes that this look misses.
	g.mu.Unlock()
	l.began, l.changes = g.Clock.Now(), g.changes.all()
	l.cluster, l.err = g.read(ctx)
	if l.err != nil {
		return
	}
	g.generation++
	l.cluster.Generation = g.generation
	if g.Metrics != nil {
		g.Metrics.GatherSeconds.Observe(g.Clock.Since(l.began).Seconds())
	}
	g.mu.Lock()
	g.latest = l
	g.mu.Unlock()
}

// hand returns a copy of the cluster with the current time and refusals. The objects are shared, and the maps that callers may change are copied.
func (g *Gatherer) hand(l *look) (*snapshot.Cluster, error) {
	if l.err != nil {
		return nil, l.err
	}
	c := *l.cluster
	c.NodeClasses = maps.Clone(c.NodeClasses)
	c.Now, c.Refused = g.Clock.Now(), g.Ledger.Refused()
	return &c, nil
}
