package gather

import (
	"context"
	"time"

	"karve.sh/karve/pkg/snapshot"
)

// recent is for how long what was read of the cloud's node classes is used again, and for how long reads of the same objects are of one generation.
const recent = 2 * time.Second

// Cluster reads everything that decisions depend on. It begins after the caller has asked, so it shows whatever the caller has seen in the caches, and all NodeClaims that
// were written. Callers share the objects and must not change them.
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
