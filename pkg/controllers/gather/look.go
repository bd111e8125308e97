package gather

import (
	"context"
	"time"

	"karve.sh/karve/pkg/snapshot"
)

// recent is how long the cloud's node classes are reused after a read, and how long reads of the same objects belong to one generation.
const recent = 2 * time.Second

// Cluster reads everything on which decisions depend. The read begins after the call, so it includes everything that the caller has seen in the caches,
// and all NodeClaims that were written. Callers share the objects and must not change them.
func (g *Gatherer) Cluster(ctx context.Context) (*snapshot.Cluster, error) {
	g.looking.Lock()
	defer g.looking.Unlock()
	began := g.Clock.Now()
	c, err := g.read(ctx)
	if err != nil {
		return nil, err
	}
	if g.fresh.any() || g.Clock.Since(g.since) > recent {
		g.generation++
		g.since, g.fresh = began, fresh{}
	}
	if g.Metrics != nil {
		g.Metrics.GatherSeconds.Observe(g.Clock.Since(began).Seconds())
	}
	c.Generation, c.Now, c.Refused = g.generation, g.Clock.Now(), g.Ledger.Refused()
	return c, nil
}
