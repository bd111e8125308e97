package planning

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/watchdog"
)

// Plan is a plan for the pending pods of a view that passed its check. In the snapshot of the view, the classes that it leaves out are blocked.
type Plan struct {
	View snapshot.View
	planner.Plan
	outcome
}

// Headroom is a plan for headroom that passed its check, unless Err is set.
type Headroom struct {
	headroom.Headroom
	outcome
}

// outcome describes how a plan was found.
type outcome struct {
	// Err is why no plan passes the check, which is a bug. A plan for pods then leaves out all of them.
	Err error
	// aside has the classes that the plan leaves out, and rejected reports whether a plan before it broke a rule.
	aside    []solve.Aside
	rejected bool
}

// Suppose makes a plan for a what-if view. It returns the plan for the pending pods and the headroom after it.
func Suppose(view snapshot.View, effort int64) (Plan, Headroom) {
	with := search{
		solver: func() solve.Solver { return solve.Solver{Effort: effort} }, more: func() bool { return false },
		within: func(attempt func()) bool { attempt(); return true }, built: func() {},
	}
	plan := planFor(view, planner.Plan{}, nil, with)
	return plan, headroomFor(&plan, planHeadroom(headroom.DemandOf(&plan.View, plan.Plan), with), with)
}

// search defines how plans are made.
type search struct {
	// solver returns the solver of the next plan.
	solver func() solve.Solver
	// more reports whether there is time for more plans after some that broke rules.
	more func() bool
	// within makes and checks a plan, and reports whether that ended in time. built is called between the two.
	within func(attempt func()) bool
	built  func()
}

// contain returns a plan that passes its check, and its snapshot. It leaves out the classes that no valid plan includes. first is a plan that was
// already made, and may be nil.
func (with search) contain(s planner.Snapshot, first *planner.Plan, build func(planner.Snapshot, solve.Solver) planner.Plan) (planner.Snapshot, planner.Plan, outcome) {
	plans := 0
	if first != nil {
		plans = 1
	}
	kept, plan, aside, err := solve.ContainWithin(s, first, func(s planner.Snapshot) planner.Plan {
		plans++
		defer with.built()
		return build(s, with.solver())
	}, with.more, with.within)
	return kept, plan, outcome{Err: err, aside: aside, rejected: err != nil || plans > 1}
}

// planFor plans for the pending pods of a view. The plan continues an earlier one. known is a plan that was made for an equal view, and may be nil.
func planFor(view snapshot.View, earlier planner.Plan, known *planner.Plan, with search) Plan {
	if known != nil {
		seated := view.Keeping(*known)
		known = &seated
	}
	kept, plan, outcome := with.contain(view.Snapshot, known, func(s planner.Snapshot, solver solve.Solver) planner.Plan {
		return view.Keeping(alternatives.Add(s, solver.Resume(s, earlier)))
	})
	if outcome.Err != nil {
		plan = nothing(kept, outcome.Err)
	}
	view.Snapshot = kept
	return Plan{view, plan, outcome}
}

// nothing returns the plan that leaves out all pods. With it, no machine whose pods would have to move is removed.
func nothing(s planner.Snapshot, err error) planner.Plan {
	var plan planner.Plan
	for i := range s.Classes {
		for _, pod := range s.Classes[i].Pods {
			plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod, Refusal: planner.Refusal{Reason: planner.ReasonSetAside, Message: err.Error()}})
		}
	}
	return plan
}

// headroomPlan is a plan for headroom, and the snapshot of what the plan for pending pods leaves.
type headroomPlan struct {
	left planner.Snapshot
	plan planner.Plan
}

func planHeadroom(demand headroom.Demand, with search) headroomPlan {
	left, plan := demand.Plan(with.solver())
	return headroomPlan{left, alternatives.Add(left, plan)}
}

// headroomFor checks a plan for the headroom after a plan for pending pods. If it breaks a rule, headroomFor falls back to a simple plan.
func headroomFor(after *Plan, made headroomPlan, with search) Headroom {
	kept, plan, outcome := with.contain(made.left, &made.plan, func(s planner.Snapshot, solver solve.Solver) planner.Plan {
		return alternatives.Add(s, solver.Plan(s))
	})
	if outcome.Err != nil {
		plan = made.plan
	}
	return Headroom{headroom.Of(&after.View, kept, plan), outcome}
}

// question is the input of a plan for pending pods.
type question struct {
	snapshot planner.Snapshot
	earlier  planner.Plan
}

// plan returns the plan for the pending pods of a view.
func (p *Planner) plan(ctx context.Context, view snapshot.View) Plan {
	p.making.Add(1)
	defer p.making.Add(-1)
	p.planning.Lock()
	defer p.planning.Unlock()
	started := p.Clock.Now()
	asked := question{view.Snapshot, p.Progress.earlier(&view, started)}
	with, cut := p.search(ctx, started)
	known := p.podPlans.to(asked, started)
	plan := planFor(view, asked.earlier, known, with)
	if known == nil {
		p.Metrics.PlanSeconds.Observe(p.Clock.Since(started).Seconds())
		if !plan.rejected {
			p.podPlans.keep(asked, plan.Plan, started, cut.Load())
		}
	}
	p.note(ctx, "pods", view.Snapshot, plan.outcome)
	p.setAside(&view, plan.aside, started)
	return plan
}

// headroom returns the headroom after a plan for pending pods.
func (p *Planner) headroom(ctx context.Context, after *Plan) Headroom {
	p.making.Add(1)
	defer p.making.Add(-1)
	p.planning.Lock()
	defer p.planning.Unlock()
	started := p.Clock.Now()
	demand := headroom.DemandOf(&after.View, after.Plan)
	with, cut := p.search(ctx, started)
	known := p.headroomPlans.to(demand, started)
	if known == nil {
		made := planHeadroom(demand, with)
		p.headroomPlans.keep(demand, made, started, cut.Load())
		known = &made
	}
	kept := headroomFor(after, *known, with)
	p.note(ctx, "headroom", known.left, kept.outcome)
	return kept
}

// search returns a search that ends when the time budget is used up, and whether that happened. Only the first plan gets the whole budget: further
// plans are rare and follow a bug.
func (p *Planner) search(ctx context.Context, started time.Time) (with search, cut *atomic.Bool) {
	plans, attempts := 0, 0
	var checking atomic.Bool
	with.within = func(attempt func()) bool {
		attempts++
		checking.Store(false)
		return p.Watchdog.Attempt(ctx, func() watchdog.Step {
			if checking.Load() {
				return watchdog.Check
			}
			return watchdog.Plan
		}, attempts == 1, attempt)
	}
	with.built = func() { checking.Store(true) }
	cut = &atomic.Bool{}
	with.solver = func() solve.Solver {
		budget, began := p.Budget, p.Clock.Now()
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
	with.more = func() bool { return p.Clock.Since(started) < 5*p.Budget }
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
func (p *Planner) note(ctx context.Context, purpose string, s planner.Snapshot, o outcome) {
	if o.rejected {
		p.Metrics.PlansRejected.Inc()
	}
	if o.Err != nil {
		// This is a bug in Karve that affects all pods. The same snapshot would give the same plan, so it waits for another snapshot.
		log.FromContext(ctx).Error(o.Err, "Found no plan that keeps its own rules", "purpose", purpose)
		return
	}
	before, now := p.aside[purpose], sets.New[string]()
	for _, a := range o.aside {
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
