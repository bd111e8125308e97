// Package planning makes one view and one plan of the cluster for all controllers.
//
// Controllers that read the same cluster get the same [Generation]. It has the view, the plan for the pending pods and the headroom after it, and makes
// each of them when a controller first asks for it. A later generation reuses a plan only if its input would be equal (answers.go). So a controller
// never acts on a plan for another cluster than the one that it has just read. A what-if question is an edit of the view with a separate plan.
//
// A plan continues the previous plan, whose NodeClaims may still have to be created (progress.go).
package planning

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/watchdog"
)

// Planner makes the generations. It is safe for concurrent use.
type Planner struct {
	Clock   clock.PassiveClock
	Metrics *metrics.Metrics
	// Budget is how long it searches for a better plan. Plans for many shapes of pods get a multiple of it ([solve.Patience]).
	Budget time.Duration
	// Progress has the remaining launches of the plan.
	Progress Progress
	// Groups knows which groups of pods have a place in it.
	Groups snapshot.GroupPlans
	// ReadAhead makes plans include pods that the scheduler has not tried yet. If it is nil, they do not.
	ReadAhead *ReadAhead
	// Watchdog bounds how long a view, a plan and its check may take. It may be nil.
	Watchdog *watchdog.Watchdog

	// making is the number of callers that make a plan or wait for one.
	making atomic.Int32

	// mu guards latest, queue and extended. queue orders the pending classes if one plan cannot include all of them.
	mu       sync.Mutex
	latest   *Generation
	queue    facts.ClassQueue
	extended *Extended

	// planning is locked while a plan is made, so that a controller that asks for an equal plan meanwhile gets that one. It guards the fields below.
	planning      sync.Mutex
	podPlans      answers[podQuestion, planner.Plan]
	headroomPlans answers[headroom.Input, checked.HeadroomPlan]
	// aside has the classes that were left out of the latest plan for each purpose, by the names of their first pods.
	aside map[string]sets.Set[string]
}

// Generation is one read of the cluster, with the view and plans that are made from it. Controllers must not change the view.
type Generation struct {
	View *snapshot.View

	planner  *Planner
	cluster  *facts.Cluster
	plan     once[checked.Plan]
	headroom once[checked.Headroom]
}

// Of returns the generation of a cluster. Clusters that were read together, with the same refusals, have the same generation.
func (p *Planner) Of(ctx context.Context, c *facts.Cluster) (*Generation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	as := *c
	as.Queue = p.queue
	if p.ReadAhead != nil {
		as.ReadAhead = p.ReadAhead.of(p.Clock.Now())
	}
	if g := p.latest; g != nil && c.Generation > 0 && g.cluster.Generation == c.Generation && reflect.DeepEqual(g.cluster.Refused, c.Refused) &&
		g.cluster.ReadAhead.Alive == as.ReadAhead.Alive && g.cluster.ReadAhead.Open == as.ReadAhead.Open {
		return g, nil
	}
	var view snapshot.View
	if err := p.Watchdog.Run(ctx, watchdog.View, func(_ context.Context, visit watchdog.Visit) error {
		as.Visit = visit
		view = snapshot.Build(&as)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("making the view: %w", err)
	}
	g := &Generation{View: &view, planner: p, cluster: &as}
	if p.latest == nil || p.latest.cluster.Generation <= c.Generation {
		p.latest = g
	}
	return g, nil
}

// Without returns the generation as if some of the pending pods did not exist.
func (g *Generation) Without(pods sets.Set[types.UID]) *Generation {
	if pods.Len() == 0 {
		return g
	}
	view := g.View.Without(pods)
	return &Generation{View: &view, planner: g.planner, cluster: g.cluster}
}

// Plan returns the plan for the pending pods.
func (g *Generation) Plan(ctx context.Context) *checked.Plan {
	return g.plan.get(func() checked.Plan { return g.planner.plan(ctx, *g.View) })
}

// Headroom returns the plan for the headroom, after the plan for the pending pods.
func (g *Generation) Headroom(ctx context.Context) *checked.Headroom {
	return g.headroom.get(func() checked.Headroom { return g.planner.headroom(ctx, g.Plan(ctx)) })
}

// Busy reports whether a plan is being made or waited for. Repeatable searches give way to it.
func (p *Planner) Busy() bool { return p.making.Load() > 0 }

// Adopt records that the plan for a view is being carried out, so that the next plans continue it. It returns the entry of each launch in [Progress].
func (p *Planner) Adopt(view *snapshot.View, plan planner.Plan) []int {
	p.Requeue(view, plan)
	p.Groups.Note(view, plan)
	if p.ReadAhead != nil {
		p.ReadAhead.keep(view, plan, p.Clock.Now())
	}
	return p.Progress.keep(view, plan, p.Clock.Now())
}

// Requeue moves the classes of pods that a plan included to the end of the queue, so that the next plan includes others.
func (p *Planner) Requeue(view *snapshot.View, plan planner.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = view.NextQueue(p.queue, plan)
}

// once makes a value for the first caller and returns it to all. If making it panics, the next caller tries again.
type once[T any] struct {
	mu   sync.Mutex
	made *T
}

func (o *once[T]) get(build func() T) *T {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.made == nil {
		made := build()
		o.made = &made
	}
	return o.made
}
