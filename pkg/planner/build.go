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
const DefaultEffort = 700_000

// Build is Search{}.Build.
func Build(s Snapshot) Plan { return Search{}.Build(s) }

// Build returns the cheapest plan that it finds for a snapshot: as many pods as possible have a place, at the least price,
// with the fewest machines, and every pod without a place has a reason. It is deterministic, and what it decides depends on
// names and amounts, never on the order of the snapshot. It accepts any snapshot: of one that [Validate] refuses, it plans with what is sound.
//
// Nodes come first, since their capacity is paid for. One shape of pods and small problems are solved to the optimum; for
// the rest several constructions compete and the best is improved, with budgets in steps rather than seconds.
func (search Search) Build(s Snapshot) Plan {
	if plainly(s) {
		return search.plain(s)
	}
	first := search.First
	search.First = nil
	plan := orFirstFit(s, arrange(s, func(s Snapshot, share int64) Plan {
		some := search
		some.Effort = max(1, search.effort().left/share)
		return some.plain(s)
	}, search.Stop), search.Stop)
	// Its bound is put together from those of several plans, or of other classes.
	plan.Proof = nil
	if first != nil {
		first(plan)
	}
	return plan
}

// plain plans with what each machine has and with the rules that keep pods apart on one machine, and with no other rule, nor with wishes,
// priorities, weights and choices.
func (search Search) plain(s Snapshot) Plan {
	p := compile(s)
	var first func(*solution)
	if search.First != nil {
		first = func(s *solution) { search.First(p.plan(s)) }
	}
	best, bound, shown := p.solve(search.effort(), first)
	plan := p.plan(best)
	plan.Bound = min(plan.Price, MicroUSD(bound))
	plan.Proof = p.show(shown)
	return orFirstFit(s, plan, search.Stop)
}

// solve returns the best solution found, and a price that no plan for the pods that it places can go below. It tells first, when not nil, of the first
// solution, and returns what the bound rests on as well.
func (p *problem) solve(e *effort, first func(*solution)) (*solution, int64, *branch) {
	demand := p.demand()
	switch {
	case len(p.shapes) == 0:
		return p.told(newSolution(p), 0, nil, first)
	case len(p.shapes) == 1:
		if s, ok := p.coverOne(); ok {
			return p.told(s, s.cost(p).price, &branch{covers: p.coverAlone(0, s)}, first)
		}
	case p.small(demand):
		if s, c, ok := p.exact(); ok {
			return p.told(s, c.price, nil, first)
		}
	}
	return p.mix(e, first)
}

// told tells first of a solution that is the last as well.
func (p *problem) told(s *solution, bound int64, shown *branch, first func(*solution)) (*solution, int64, *branch) {
	if first != nil {
		first(s)
	}
	return s, bound, shown
}
