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

type domain struct{ topology, index int }

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

// favoredFirst moves launches outside of the favored domain, if there is one, behind all other candidates.
func (a *arranger) favoredFirst(pr *problem, candidates []candidate) []candidate {
	if a.favored != nil {
		elsewhere := func(x candidate) int64 {
			return truth(x.offering >= 0 && pr.domain(x.has.Domains, a.favored.topology) != a.favored.index)
		}
		slices.SortStableFunc(candidates, func(x, y candidate) int { return cmp.Compare(elsewhere(x), elsewhere(y)) })
	}
	return candidates
}
