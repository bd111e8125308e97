package gather

import (
	"context"
	"errors"
	"maps"
	"time"

	"karve.sh/karve/pkg/snapshot"
)

// recent is how old a look may be for those who ask for no newer one.
const recent = 2 * time.Second

// look is one reading of the cluster, for all who asked for it before it began.
type look struct {
	done    chan struct{}
	cluster *snapshot.Cluster
	err     error
	// began is when it began, changes how many changes had been counted then.
	began   time.Time
	changes uint64
}

// Cluster reads all that a decision may depend on: NodeClaims and the cloud's node classes from the API server, and of the caches what has changed. Those who ask
// while others are read for wait for the next look, and share it: it begins after they asked, as if each had read alone. The objects are shared, and
// nobody changes them.
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

// Recent is the latest look, if it is at most two seconds old and no object in the caches has changed since it began; or else a new one. It is for those who
// report, and for those who look again before they act.
func (g *Gatherer) Recent(ctx context.Context) (*snapshot.Cluster, error) {
	g.mu.Lock()
	l := g.latest
	g.mu.Unlock()
	if l == nil || g.changes == nil || g.Clock.Since(l.began) > recent || g.changes.all() != l.changes {
		return g.Cluster(ctx)
	}
	return g.hand(l)
}

// join returns the look that has not begun; first says that the caller is to take it.
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
	g.next = nil // Who asks from now on may have seen something that this look has not.
	g.mu.Unlock()
	l.began, l.changes = g.Clock.Now(), g.changes.all()
	l.cluster, l.err = g.read(ctx)
	if l.err != nil {
		return
	}
	if g.Metrics != nil {
		g.Metrics.GatherSeconds.Observe(g.Clock.Since(l.began).Seconds())
	}
	g.mu.Lock()
	g.latest = l
	g.mu.Unlock()
}

// hand returns the cluster of a look as it is now: the objects are shared, and what is made of them is the caller's own.
func (g *Gatherer) hand(l *look) (*snapshot.Cluster, error) {
	if l.err != nil {
		return nil, l.err
	}
	c := *l.cluster
	c.NodeClasses = maps.Clone(c.NodeClasses)
	c.Now, c.Refused = g.Clock.Now(), g.Ledger.Refused()
	return &c, nil
}
