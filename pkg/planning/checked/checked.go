// Package checked makes plans that pass their check, for pending pods and for headroom. It leaves out the pods for which no valid plan is found. The package
// has no clock and no client: who calls it says how long a search may take.
package checked

import (
	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

// Plan is a plan for the pending pods of a view that passed its check. In the snapshot of the view, the classes that it leaves out are blocked.
type Plan struct {
	View snapshot.View
	planner.Plan
	Outcome
}

// Headroom is a plan for headroom that passed its check, unless Err is set.
type Headroom struct {
	headroom.Headroom
	Outcome
}

// Outcome describes how a plan was found.
type Outcome struct {
	// Err is why no plan passes the check, which is a bug. A plan for pods then leaves out all of them.
	Err error
	// Aside has the classes that the plan leaves out, and Rejected reports whether a plan before it broke a rule.
	Aside    []solve.Aside
	Rejected bool
}

// Of makes a plan for the pending pods of a view with an effort.
func Of(view snapshot.View, effort int64) Plan {
	return PodsOf(view, planner.Plan{}, nil, WithEffort(effort))
}

// Suppose makes a plan for a what-if view. It returns the plan for the pending pods and the headroom after it.
func Suppose(view snapshot.View, effort int64) (Plan, Headroom) {
	plan, with := Of(view, effort), WithEffort(effort)
	return plan, HeadroomAfter(&plan, MakeHeadroom(headroom.InputOf(&plan.View, plan.Plan), with), with)
}

// WithEffort returns a search with an effort. After plans that broke rules, it makes as few more as possible.
func WithEffort(effort int64) Search {
	return Search{Solver: func() solve.Solver { return solve.Solver{Effort: effort} }, More: func() bool { return false }}
}

// Search defines how plans are made.
type Search struct {
	// Solver returns the solver of the next plan.
	Solver func() solve.Solver
	// More reports whether there is time for more plans after some that broke rules. If it is nil, there is.
	More func() bool
	// EndsInTime makes and checks a plan, and reports whether that ended in time. If it is nil, each ends in time. Built is called between the two. It may be
	// nil.
	EndsInTime func(plan func()) bool
	Built      func()
}

// Plan returns a plan that passes its check, and its snapshot, like [Search.Contain].
func (with Search) Plan(s planner.Snapshot, first *planner.Plan) (planner.Snapshot, planner.Plan, Outcome) {
	return with.Contain(s, first, func(s planner.Snapshot, solver solve.Solver) planner.Plan { return solver.Plan(s) })
}

// Contain returns a plan that passes its check, and its snapshot. It leaves out the classes that no valid plan includes. first is a plan that was
// already made, and may be nil.
func (with Search) Contain(s planner.Snapshot, first *planner.Plan, build func(planner.Snapshot, solve.Solver) planner.Plan) (planner.Snapshot, planner.Plan, Outcome) {
	plans, more := 0, with.More
	if first != nil {
		plans = 1
	}
	if more == nil {
		more = func() bool { return true }
	}
	kept, plan, aside, err := solve.Contain(s, first, func(s planner.Snapshot) planner.Plan {
		plans++
		if with.Built != nil {
			defer with.Built()
		}
		return build(s, with.Solver())
	}, more, with.EndsInTime)
	return kept, plan, Outcome{Err: err, Aside: aside, Rejected: err != nil || plans > 1}
}

// PodsOf plans for the pending pods of a view. The plan continues an earlier one, and machines that have a Node keep their pods. known is a plan that was
// made for an equal view, and may be nil.
func PodsOf(view snapshot.View, earlier planner.Plan, known *planner.Plan, with Search) Plan {
	if known != nil {
		seated := view.Keeping(*known)
		known = &seated
	}
	kept, plan, outcome := with.Contain(view.Snapshot, known, func(s planner.Snapshot, solver solve.Solver) planner.Plan {
		solver.Frozen = view.Frozen()
		return view.Keeping(alternatives.Add(s, solver.Resume(s, earlier)))
	})
	if outcome.Err != nil {
		plan = nothing(kept, outcome.Err)
	}
	view.Snapshot = kept
	return Plan{view, solve.SayWhoWentFirst(kept, plan), outcome}
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

// HeadroomPlan is a plan for headroom, and the snapshot of what the plan for pending pods leaves.
type HeadroomPlan struct {
	Left planner.Snapshot
	Plan planner.Plan
}

// MakeHeadroom plans for headroom without a check.
func MakeHeadroom(input headroom.Input, with Search) HeadroomPlan {
	left, plan := input.Plan(with.Solver())
	return HeadroomPlan{left, alternatives.Add(left, plan)}
}

// HeadroomAfter checks a plan for the headroom after a plan for pending pods. If it breaks a rule, HeadroomAfter falls back to a simple plan.
func HeadroomAfter(after *Plan, made HeadroomPlan, with Search) Headroom {
	kept, plan, outcome := with.Contain(made.Left, &made.Plan, func(s planner.Snapshot, solver solve.Solver) planner.Plan {
		return alternatives.Add(s, solver.Plan(s))
	})
	if outcome.Err != nil {
		plan = made.Plan
	}
	return Headroom{headroom.Of(&after.View, kept, plan), outcome}
}
