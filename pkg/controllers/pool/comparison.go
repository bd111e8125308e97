package pool

import (
	"context"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/fleet/counterfactual"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// compareEvery is the interval at which Karve computes the cost of Karpenter's packing and of one plan. Each computation takes up to two seconds of one core.
	compareEvery = 5 * time.Minute
	// compareFirst is the delay of the first computation, and of one that gave way to a plan.
	compareFirst = 30 * time.Second
	// planFor limits the search for one plan for all pods.
	planFor = time.Second
)

// Comparison periodically measures what the running pods would cost with Karpenter's packing, and with one plan. It is not a controller, because no controller should wait
// for it. The manager runs it on the leader.
type Comparison struct {
	Gatherer *gather.Gatherer
	Planner  *planning.Planner
	Metrics  *metrics.Metrics
	Clock    clock.Clock
}

// Start implements manager.Runnable.
func (c *Comparison) Start(ctx context.Context) error {
	for wait, seen := compareFirst, uint64(0); ; {
		timer := c.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		wait = compareFirst
		if c.Planner.Busy() {
			continue
		}
		cluster, err := c.Gatherer.Cluster(ctx)
		if err != nil {
			log.FromContext(ctx).Error(err, "The cluster cannot be read for the comparison with Karpenter's packing")
			continue
		}
		if wait = compareEvery; cluster.Generation == seen {
			continue
		}
		seen = cluster.Generation
		g, err := c.Planner.Of(ctx, cluster)
		if err != nil {
			log.FromContext(ctx).Error(err, "There is no view for the comparison with Karpenter's packing")
			continue
		}
		prices, ok := counterfactual.Karpenter(g.View)
		c.Metrics.PoolKarpenter.Reset()
		if !ok {
			continue
		}
		for pool, price := range prices {
			c.Metrics.PoolKarpenter.WithLabelValues(pool).Set(metrics.USD(int64(price)))
		}
		if !c.overOnePlan(g.View) {
			seen, wait = 0, compareFirst
		}
	}
}

// overOnePlan measures the price of the nodes over that of one plan for their pods. It returns false if it gave way to a plan that pods wait for.
func (c *Comparison) overOnePlan(view *snapshot.View) bool {
	began, gaveWay := c.Clock.Now(), false
	over, ok := counterfactual.OverOnePlan(view, solve.Solver{Stop: func() bool {
		gaveWay = gaveWay || c.Planner.Busy()
		return gaveWay || c.Clock.Since(began) > planFor
	}})
	if ok && !gaveWay {
		c.Metrics.OverOnePlan.WithLabelValues().Set(over)
	}
	return !gaveWay
}
