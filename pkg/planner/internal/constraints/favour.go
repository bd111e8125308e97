package constraints

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Limits on plans that favor a domain: the share of the effort of each, and their number.
const (
	shareOfFavour = 4
	mostFavours   = 6
)

// domain is a domain of a topology.
type domain struct{ topology, index int }

// settle plans for all pods of a snapshot, and then again with each domain favored. Where the first pods go decides where the rules let the others follow, and
// one pod too many in an expensive domain of a spread costs a machine.
func (a *arranger) settle(s planner.Snapshot) planner.Plan {
	best := a.settleOnce(s)
	if !OnlyPrice(s) {
		return best
	}
	for _, d := range newBooks(s).toFavour() {
		if best.Price == 0 && len(best.Unplaced) == 0 || a.hint != nil && best.Price == a.hint.Bound || a.stopped() {
			break
		}
		favouring := *a
		favouring.favoured = &d
		favouring.solver.Plain = func(s planner.Snapshot, share int64) planner.Plan { return a.solver.Plain(s, share*shareOfFavour) }
		best = betterFor(s, favouring.settleOnce(s), best)
	}
	return best
}

// toFavour returns the domains that something can be launched in, of the topologies that rules concern, by name.
func (b *books) toFavour() []domain {
	var out []domain
	for i := range b.rules {
		t := b.rules[i].Topology
		if t == planner.PerNode || slices.ContainsFunc(out, func(d domain) bool { return d.topology == t }) {
			continue
		}
		for d := range b.rules[i].domains {
			if slices.ContainsFunc(b.Offerings, func(o planner.Offering) bool { return b.domain(o.Domains, t) == d }) {
				out = append(out, domain{t, d})
			}
		}
	}
	slices.SortFunc(out, func(x, y domain) int {
		u, v := b.Topologies[x.topology], b.Topologies[y.topology]
		return cmp.Or(cmp.Compare(u.Key, v.Key), cmp.Compare(u.Domains[x.index], v.Domains[y.index]))
	})
	return out[:min(len(out), mostFavours)]
}

// favouredFirst moves launches outside of the favored domain, if there is one, behind all other berths.
func (a *arranger) favouredFirst(b *books, berths []berth) []berth {
	if a.favoured != nil {
		elsewhere := func(x berth) int64 {
			return truth(x.offering >= 0 && b.domain(x.has.Domains, a.favoured.topology) != a.favoured.index)
		}
		slices.SortStableFunc(berths, func(x, y berth) int { return cmp.Compare(elsewhere(x), elsewhere(y)) })
	}
	return berths
}
