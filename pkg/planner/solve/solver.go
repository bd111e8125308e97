package solve

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/effort"
)

// Solver configures the search for a plan. The zero value searches with [DefaultEffort].
type Solver struct {
	// Effort limits the search by steps of its loops, not by time: the same effort gives the same plan. Of two loops that run in parallel, only the steps
	// of the longer one count. The effort is meant for up to twenty shapes of pods. More shapes get proportionally more, up to four times as much. If
	// Effort is 0, DefaultEffort is used.
	Effort int64
	// Stop, if not nil, is called regularly and ends the search when it returns true. The search then returns its best plan so far. It is meant for a
	// clock: a plan that it cut short depends on the speed of the computer. Several goroutines call it, one at a time.
	Stop func() bool
	// First, if not nil, is called with the first complete plan, which can be launched as it is.
	First func(planner.Plan)
	// Frozen marks the nodes of the snapshot on which [Solver.Resume] does not exchange the pods of the earlier plan for others. Missing entries are false.
	Frozen []bool
}

// DefaultEffort is about 200 ms of search on two cores for a thousand pods in twenty shapes.
const DefaultEffort = effort.Default

func (with Solver) stopped() bool { return with.Stop != nil && with.Stop() }

// search plans for a snapshot once.
func (with Solver) search(s planner.Snapshot) planner.Plan {
	if constraints.IsPlain(s) {
		return with.plain(s)
	}
	first := with.First
	with.First = nil
	plan := constraints.Plan(s, constraints.Solver{
		Plain: func(s planner.Snapshot, share int64) planner.Plan {
			some := with
			some.Effort = max(1, effort.New(with.Effort, with.Stop).Left/share)
			return some.plain(s)
		},
		Steps: effort.New(with.Effort, with.Stop).Left,
		Stop:  with.Stop,
	})
	plan = orFirstFit(s, plan, with.Stop)
	if first != nil {
		first(plan)
	}
	return plan
}

// plain makes a plan with only the capacities of machines and the rules that keep pods apart on one machine. It ignores all other rules, preferences, priorities,
// weights and choices.
func (with Solver) plain(s planner.Snapshot) planner.Plan {
	return orFirstFit(s, with.withinLimits(s), with.Stop)
}
