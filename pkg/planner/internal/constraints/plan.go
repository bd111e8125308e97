package constraints

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Solver plans for snapshots without constraints between machines.
type Solver struct {
	// Plain makes a plan with 1/share of the effort.
	Plain func(s planner.Snapshot, share int64) planner.Plan
	// Steps is the whole effort.
	Steps int64
	// Stop, if not nil, ends planning early once it returns true.
	Stop func() bool
}

// Plan plans for a valid snapshot with rules, preferences, priorities, weights and choices. It decides which pods go to which domain and pool, and which of
// their preferences are satisfied. It splits the classes accordingly, and calls the solver with snapshots whose only constraints are quotas and pods
// that are kept apart on machines. It then combines the plans. Pods that the solver does not place affect the decisions of the next round.
func Plan(s planner.Snapshot, with Solver) planner.Plan {
	if IsPlain(s) {
		return with.Plain(s, 1)
	}
	clean, refused := withoutBlocked(s)
	clean = withoutHopeless(clean)
	a := arranger{solver: with, given: clean, moves: newMoves(clean)}
	pr := newProblem(clean)
	if pr.exact() {
		if plan := a.plain(pr.lowered(pr.whole(), true)); !inverted(clean, plan) {
			plan.Unplaced = append(plan.Unplaced, refused...)
			Sort(s, &plan)
			return plan
		}
	}
	plan := a.arrange(clean)
	if inverted(clean, plan) {
		plan = betterFor(clean, a.byPriority(clean), plan)
	}
	plan = a.rest(clean, plan)
	plan, optimal := a.enumerate(clean, plan)
	if plan.Bound = plan.Price; !optimal {
		plan.Bound = min(plan.Price, a.bound(clean, plan))
	}
	plan.Unplaced = append(plan.Unplaced, refused...)
	Sort(s, &plan)
	return plan
}

// IsPlain reports whether a snapshot has none of the constraints that this package handles.
func IsPlain(s planner.Snapshot) bool {
	for _, r := range s.Rules {
		if r.Kind != planner.Apart || r.Topology != planner.PerNode {
			return false
		}
	}
	return OnlyPrice(s)
}

// OnlyPrice reports whether the cheaper of two plans for equally many pods is always better: there are no preferences and no minValues, and all priorities and all
// weights are equal.
func OnlyPrice(s planner.Snapshot) bool {
	for _, p := range s.Pools {
		if len(p.MinValues) > 0 || p.Weight != s.Pools[0].Weight {
			return false
		}
	}
	for _, c := range s.Classes {
		if len(c.Preferences) > 0 || c.Priority != s.Classes[0].Priority {
			return false
		}
	}
	return true
}

// arranger plans for snapshots without blocked pods.
type arranger struct {
	solver Solver
	given  planner.Snapshot
	// favored is the domain to which pods go first, at any price. It is nil if they go where they are cheap.
	favored *domain
	// hint is the plan for the given snapshot without the constraints that only this package handles. It is nil until needed.
	hint *planner.Plan
	// hintBinds reports whether pods of the hint are bound to domains. Its bound is then that of plans for all pods.
	hintBinds bool
	// moves is how many plans may still be made to move pods between domains.
	moves *int
}

// stopped reports whether the search has to end. Remaining work is then done in the quickest way.
func (a *arranger) stopped() bool { return a.solver.Stop != nil && a.solver.Stop() }

func (a *arranger) plain(s planner.Snapshot) planner.Plan { return a.solver.Plain(s, 1) }

// arrangeOnce plans for all pods of a snapshot once.
func (a *arranger) arrangeOnce(s planner.Snapshot) planner.Plan {
	plan, grouped := a.arrangeGroups(s, false)
	if !grouped || len(plan.Unplaced) == 0 && len(plan.Launches) == 0 || a.stopped() {
		return plan
	}
	again, _ := a.arrangeGroups(s, true)
	if cmp.Or(cmp.Compare(len(again.Unplaced), len(plan.Unplaced)), cmp.Compare(again.Price, plan.Price)) < 0 {
		return again
	}
	return plan
}

// arrangeGroups plans for all pods, those that share a machine first. It also reports whether any of those took a node.
func (a *arranger) arrangeGroups(s planner.Snapshot, sparing bool) (planner.Plan, bool) {
	g := NewPartial(s)
	postponed := a.gather(g, sparing)
	grouped := len(g.Plan.Placements) > 0
	g.Add(a.rounds(g.Snapshot))
	g.Plan.Unplaced = append(g.Plan.Unplaced, postponed...)
	return g.Plan, grouped
}

// rest plans for the unplaced pods of a plan, as long as any of them can be placed on the plan's launches or on what may still be launched. They may
// have been left out because other decisions were still open: in the end, a limit is not used up, or a machine was launched for other pods.
func (a *arranger) rest(s planner.Snapshot, plan planner.Plan) planner.Plan {
	for len(plan.Unplaced) > 0 && !a.stopped() {
		g := NewPartial(s)
		g.Fix(plan)
		more := (&arranger{solver: a.solver, given: g.Snapshot, moves: a.moves}).arrange(g.Snapshot)
		if len(more.Unplaced) >= len(plan.Unplaced) {
			break
		}
		g.Fix(more)
		left := map[string]bool{}
		for _, x := range more.Unplaced {
			left[x.Pod] = true
		}
		for _, x := range plan.Unplaced {
			if left[x.Pod] {
				g.Plan.Unplaced = append(g.Plan.Unplaced, x)
			}
		}
		plan = g.Plan
	}
	return plan
}

// without returns the snapshot without the pods for which gone returns true.
func without(s planner.Snapshot, gone func(class int, pod string) bool) planner.Snapshot {
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		var pods []string
		for _, pod := range s.Classes[c].Pods {
			if !gone(c, pod) {
				pods = append(pods, pod)
			}
		}
		s.Classes[c].Pods = pods
	}
	return s
}

// Sort sorts a plan by names.
func Sort(s planner.Snapshot, p *planner.Plan) {
	slices.SortFunc(p.Placements, func(a, b planner.Placement) int {
		return cmp.Or(cmp.Compare(s.Nodes[a.Node].Name, s.Nodes[b.Node].Name), cmp.Compare(a.Node, b.Node))
	})
	slices.SortFunc(p.Launches, func(a, b planner.Launch) int {
		x, y := s.Offerings[a.Offering], s.Offerings[b.Offering]
		return cmp.Or(cmp.Compare(s.Pools[x.Pool].Name, s.Pools[y.Pool].Name), cmp.Compare(x.InstanceType, y.InstanceType), cmp.Compare(x.Zone, y.Zone),
			cmp.Compare(x.CapacityType, y.CapacityType), cmp.Compare(len(b.Pods), len(a.Pods)), slices.Compare(a.Pods, b.Pods))
	})
	slices.SortStableFunc(p.Unplaced, func(a, b planner.Unplaced) int { return cmp.Compare(a.Pod, b.Pod) })
}
