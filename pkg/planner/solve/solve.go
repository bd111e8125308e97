package solve

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// Solver says how long a plan is looked for. The zero value searches with [DefaultEffort].
type Solver struct {
	// Effort bounds the search in steps of its loops, not in time: the same effort gives the same plan. Of two loops at the same time only those of
	// the longer one count, as time does on two cores. It is for up to twenty shapes of pods; more
	// of them get more, in proportion, up to four times as much. 0 stands for DefaultEffort.
	Effort int64
	// Stop, when not nil, is asked now and then and ends the search when it says true; the plan found until then is returned. It
	// is for a clock: a plan that it has cut short depends on the machine. Several goroutines ask, one at a time.
	Stop func() bool
	// First, when not nil, is told the first complete plan, which is launchable as it stands.
	First func(planner.Plan)
}

// DefaultEffort is some 200 ms of search on two cores for a thousand pods in twenty shapes.
const DefaultEffort = effort.Default

// Plan is Search{}.Build.
func Plan(s planner.Snapshot) planner.Plan { return Solver{}.Plan(s) }

// Plan returns the cheapest plan that it finds for a snapshot: as many pods as possible have a place, at the least price,
// with the fewest machines, and every pod without a place has a reason. It is deterministic, and what it decides depends on
// names and amounts, never on the order of the snapshot. It accepts any snapshot: of one that [planner.Validate] refuses, it plans with what is sound.
//
// Nodes come first, since their capacity is paid for. One shape of pods and small problems are solved to the optimum; for
// the rest several constructions compete and the best is improved, with budgets in steps rather than seconds.
func (with Solver) Plan(s planner.Snapshot) planner.Plan {
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
		OrFirstFit: func(s planner.Snapshot, found planner.Plan) planner.Plan { return orFirstFit(s, found, with.Stop) },
		Stop:       with.Stop,
	})
	plan = orFirstFit(s, plan, with.Stop)
	// Its bound is put together from those of several plans, or of other classes.
	plan.Proof = nil
	if first != nil {
		first(plan)
	}
	return plan
}

// plain plans with what each machine has and with the rules that keep pods apart on one machine, and with no other rule, nor with wishes,
// priorities, weights and choices.
func (with Solver) plain(s planner.Snapshot) planner.Plan {
	p := pack.Compile(s)
	var first func(*search.Solution)
	if with.First != nil {
		first = func(s *search.Solution) { with.First(search.PlanOf(p, s)) }
	}
	best, bound, shown := search.Solve(p, effort.New(with.Effort, with.Stop), first)
	plan := search.PlanOf(p, best)
	plan.Bound = min(plan.Price, planner.MicroUSD(bound))
	plan.Proof = search.ProofOf(p, shown)
	return orFirstFit(s, plan, with.Stop)
}
