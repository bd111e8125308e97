package constraints

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Limits on plans that favor a domain: the share of the effort of each, and their number.
const (
	shareOfFavored = 4
	maxFavored     = 6
)

// arrange plans for all pods of a snapshot, and then again with each domain favored. Where the first pods go decides where the rules let the others
// follow, and one pod too many in an expensive domain of a spread costs a machine.
func (a *arranger) arrange(s planner.Snapshot) planner.Plan {
	best := a.arrangeOnce(s)
	if !OnlyPrice(s) {
		return best
	}
	for _, d := range newProblem(s).toFavor() {
		if best.Price == 0 && len(best.Unplaced) == 0 || a.optimal(best) || a.stopped() {
			break
		}
		favoring := *a
		favoring.favored = &d
		favoring.solver.Plain = func(s planner.Snapshot, share int64) planner.Plan { return a.solver.Plain(s, share*shareOfFavored) }
		best = betterFor(s, favoring.arrangeOnce(s), best)
	}
	return best
}

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

// toFavor returns the domains, of the topologies that rules concern, in which something can be launched, by name.
func (pr *problem) toFavor() []domain {
	var out []domain
	for i := range pr.rules {
		t := pr.rules[i].Topology
		if t == planner.PerNode || slices.ContainsFunc(out, func(d domain) bool { return d.topology == t }) {
			continue
		}
		for d := range pr.rules[i].domains {
			if slices.ContainsFunc(pr.Offerings, func(o planner.Offering) bool { return pr.domain(o.Domains, t) == d }) {
				out = append(out, domain{t, d})
			}
		}
	}
	slices.SortFunc(out, func(x, y domain) int {
		u, v := pr.Topologies[x.topology], pr.Topologies[y.topology]
		return cmp.Or(cmp.Compare(u.Key, v.Key), cmp.Compare(u.Domains[x.index], v.Domains[y.index]))
	})
	return out[:min(len(out), maxFavored)]
}
