package planner

// Search says how long a plan is looked for. The zero value searches with [DefaultEffort].
type Search struct {
	// Effort bounds the search in steps of its loops, not in time: the same effort gives the same plan. Of two loops at the same time only those of
	// the longer one count, as time does on two cores. It is for up to twenty shapes of pods; more
	// of them get more, in proportion, up to four times as much. 0 stands for DefaultEffort.
	Effort int64
	// Stop, when not nil, is asked now and then and ends the search when it says true; the plan found until then is returned. It
	// is for a clock: a plan that it has cut short depends on the machine. Several goroutines ask, one at a time.
	Stop func() bool
	// First, when not nil, is told the first complete plan, which is launchable as it stands.
	First func(Plan)
}

// DefaultEffort is some 200 ms of search on two cores for a thousand pods in twenty shapes.
const DefaultEffort = defaultEffort

// Build is Search{}.Build.
func Build(s Snapshot) Plan { return Search{}.Build(s) }

// Build returns the cheapest plan that it finds for a snapshot: as many pods as possible have a place, at the least price,
// with the fewest machines, and every pod without a place has a reason. It is deterministic, and what it decides depends on
// names and amounts, never on the order of the snapshot. It accepts any snapshot: of one that [Validate] refuses, it plans with what is sound.
//
// Nodes come first, since their capacity is paid for. One shape of pods and small problems are solved to the optimum; for
// the rest several constructions compete and the best is improved, with budgets in steps rather than seconds.
func (with Search) Build(s Snapshot) Plan {
	if plainly(s) {
		return with.plain(s)
	}
	first := with.First
	with.First = nil
	plan := arrange(s, solver{
		plain: func(s Snapshot, share int64) Plan {
			some := with
			some.Effort = max(1, newEffort(with.Effort, with.Stop).left/share)
			return some.plain(s)
		},
		orFirstFit: func(s Snapshot, found Plan) Plan { return orFirstFit(s, found, with.Stop) },
		stop:       with.Stop,
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
func (with Search) plain(s Snapshot) Plan {
	p := compile(s)
	var first func(*solution)
	if with.First != nil {
		first = func(s *solution) { with.First(planOf(p, s)) }
	}
	best, bound, shown := solve(p, newEffort(with.Effort, with.Stop), first)
	plan := planOf(p, best)
	plan.Bound = min(plan.Price, MicroUSD(bound))
	plan.Proof = showProof(p, shown)
	return orFirstFit(s, plan, with.Stop)
}
