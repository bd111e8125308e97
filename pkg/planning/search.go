package planning

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/watchdog"
)

// podQuestion is the input of a plan for pending pods.
type podQuestion struct {
	snapshot planner.Snapshot
	earlier  planner.Plan
	frozen   []bool
}

func (p *Planner) plan(ctx context.Context, view snapshot.View) checked.Plan {
	p.making.Add(1)
	defer p.making.Add(-1)
	p.planning.Lock()
	defer p.planning.Unlock()
	started := p.Clock.Now()
	asked := podQuestion{view.Snapshot, p.Progress.earlier(&view, started), view.Frozen()}
	patience := solve.Patience(view.Snapshot)
	with, cut := p.search(ctx, started, patience)
	known := p.podPlans.to(asked, started)
	plan := checked.PodsOf(view, asked.earlier, known, with)
	if known == nil {
		took := p.Clock.Since(started)
		p.Metrics.PlanSeconds.Observe(took.Seconds())
		if patience > 1 {
			p.extend(Extended{Took: took, Usual: p.Budget, Shapes: solve.Shapes(view.Snapshot), At: started})
		}
		if !plan.Rejected {
			p.podPlans.keep(asked, plan.Plan, started, cut.Load())
		}
	}
	p.note(ctx, "pods", view.Snapshot, plan.Outcome)
	p.setAside(&view, plan.Aside, started)
	return plan
}

func (p *Planner) headroom(ctx context.Context, after *checked.Plan) checked.Headroom {
	p.making.Add(1)
	defer p.making.Add(-1)
	p.planning.Lock()
	defer p.planning.Unlock()
	started := p.Clock.Now()
	input := headroom.InputOf(&after.View, after.Plan)
	with, cut := p.search(ctx, started, 1)
	known := p.headroomPlans.to(input, started)
	if known == nil {
		made := checked.MakeHeadroom(input, with)
		p.headroomPlans.keep(input, made, started, cut.Load())
		known = &made
	}
	kept := checked.HeadroomAfter(after, *known, with)
	p.note(ctx, "headroom", known.Left, kept.Outcome)
	return kept
}

// search returns a search that ends when the time budget is used up, multiplied by patience, and whether that happened. Only the first plan gets the whole
// budget: further plans are rare and follow a bug.
func (p *Planner) search(ctx context.Context, started time.Time, patience int64) (with checked.Search, cut *atomic.Bool) {
	plans, tried, whole := 0, 0, p.Budget*time.Duration(patience)
	var checking atomic.Bool
	with.EndsInTime = func(plan func()) bool {
		tried++
		checking.Store(false)
		return p.Watchdog.Attempt(ctx, func() watchdog.Step {
			if checking.Load() {
				return watchdog.Check
			}
			return watchdog.Plan
		}, tried == 1, plan)
	}
	with.Built = func() { checking.Store(true) }
	cut = &atomic.Bool{}
	with.Solver = func() solve.Solver {
		budget, began := whole, p.Clock.Now()
		if plans++; plans > 1 {
			budget /= 4
		}
		return solve.Solver{Stop: func() bool {
			over := p.Clock.Since(began) >= budget
			if over {
				cut.Store(true)
			}
			return over
		}}
	}
	with.More = func() bool { return p.Clock.Since(started) < 5*whole }
	return with, cut
}

// setAside sets the pods of classes aside with which plans took too long, so that the next plans do not try them again.
func (p *Planner) setAside(view *snapshot.View, aside []solve.Aside, now time.Time) {
	if p.Watchdog == nil {
		return
	}
	for _, a := range aside {
		if pods := view.Classes[a.Class].Pods; a.Late && len(pods) > 0 {
			p.Watchdog.Aside.Add(watchdog.ObjectOf("Pod", view.Pods[pods[0]]), watchdog.Plan, now) // All pods of the class have its content.
		}
	}
}

// note counts plans that were rejected and classes that were left out. It logs the left-out classes that the previous plan for the same purpose
// included.
func (p *Planner) note(ctx context.Context, purpose string, s planner.Snapshot, o checked.Outcome) {
	if o.Rejected {
		p.Metrics.PlansRejected.Inc()
	}
	if o.Err != nil {
		// This is a bug in Karve that affects all pods. The same snapshot would give the same plan, so it waits for another snapshot.
		log.FromContext(ctx).Error(o.Err, "Found no plan that keeps its own rules", "purpose", purpose)
		return
	}
	before, now := p.aside[purpose], sets.New[string]()
	for _, a := range o.Aside {
		p.Metrics.ClassSetAside(a)
		if pods := s.Classes[a.Class].Pods; len(pods) > 0 {
			if !before.Has(pods[0]) {
				log.FromContext(ctx).Info("Planned without pods that no sound plan was found for", "pod", pods[0], "pods", len(pods), "purpose", purpose, "reason", a.Refusal.Message)
			}
			now.Insert(pods[0])
		}
	}
	if p.aside == nil {
		p.aside = map[string]sets.Set[string]{}
	}
	p.aside[purpose] = now
}

// Extended describes a search for a plan that took longer than the usual budget, because pods of many shapes are worth more time.
type Extended struct {
	Took, Usual time.Duration
	Shapes      int
	At          time.Time
}

// String returns a sentence without a full stop.
func (e *Extended) String() string {
	return fmt.Sprintf("a plan took %s instead of %s, because its pods have %d different requests", e.Took.Round(100*time.Millisecond), e.Usual, e.Shapes)
}

// extendedFor is how long an extended search is reported.
const extendedFor = time.Hour

// extend records a search. Of the searches of the last hour, it keeps the one that took longest.
func (p *Planner) extend(e Extended) {
	if e.Took <= e.Usual {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.extended == nil || e.Took > p.extended.Took || e.At.Sub(p.extended.At) >= extendedFor {
		p.extended = &e
	}
}

// Extended returns the longest extended search of the last hour, or nil if there was none.
func (p *Planner) Extended() *Extended {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.extended == nil || p.Clock.Since(p.extended.At) >= extendedFor {
		return nil
	}
	return p.extended
}
