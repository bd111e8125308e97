package gather

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/watchdog"
)

// recent is how long the cloud's node classes are reused after a read, and how long reads of the same objects belong to one generation.
const recent = 2 * time.Second

// at reports that a read works at an object.
func (g *Gatherer) at(kind string, object metav1.Object) {
	if g.visit != nil {
		g.visit(kind, object)
	}
}

// Cluster reads everything on which decisions depend. The read begins after the call, so it includes everything that the caller has seen in the caches,
// and all NodeClaims that were written. Callers share the objects and must not change them.
func (g *Gatherer) Cluster(ctx context.Context) (*facts.Cluster, error) {
	if err := g.Watchdog.Load(ctx); err != nil {
		return nil, err
	}
	g.looking.Lock()
	defer g.looking.Unlock()
	began := g.Clock.Now()
	var c *facts.Cluster
	err := g.Watchdog.Run(ctx, watchdog.Gather, func(ctx context.Context, visit watchdog.Visit) (err error) {
		g.visit = visit
		c, err = g.read(ctx)
		return err
	})
	if over := (&watchdog.OverrunError{}); errors.As(err, &over) {
		g.again() // What has changed was read only in part.
	}
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
