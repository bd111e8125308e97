package constraints

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// maxSplit is the maximum number of portions of a relaxed snapshot in which pods are bound to domains. Each is a shape of the plain solver.
const maxSplit = 60

// split returns the portions of all pods of each class, with all preferences given up, and whether some are bound to domains. A rule about a class's
// own pods may require a number of them in each domain; split binds that many pods. That raises the bound of the relaxation, which has no rules about
// domains, and makes a plan for it more like the plans that keep the rules.
func (pr *problem) split() (parts []portion, bound bool) {
	for _, p := range pr.whole() {
		t, least := pr.least(p.class)
		for d, n := range least {
			if n > 0 {
				q := p
				q.offerings, q.nodes = pr.within(p.offerings, p.nodes, t, d)
				q.pods = int(n)
				p.first, p.pods, bound = p.first+q.pods, p.pods-q.pods, true
				parts = append(parts, q)
			}
		}
		if p.pods > 0 {
			parts = append(parts, p)
		}
	}
	if !bound || len(parts) > maxSplit {
		return pr.whole(), false
	}
	return parts, true
}

func (pr *problem) within(offerings, nodes []int, topology, domain int) (o, v []int) {
	for _, i := range offerings {
		if pr.domain(pr.Offerings[i].Domains, topology) == domain {
			o = append(o, i)
		}
	}
	for _, i := range nodes {
		if pr.domain(pr.Nodes[i].Domains, topology) == domain {
			v = append(v, i)
		}
	}
	return o, v
}

// least returns a topology and, by domain, the minimum number of pods of a class in every plan that places all of them. It is nil if unknown.
func (pr *problem) least(class int) (topology int, least []int64) {
	most := int64(0)
	for _, i := range pr.about[class] {
		r := &pr.rules[i]
		if r.Topology == planner.PerNode || len(r.constrained) != 1 || !r.always(class) || !slices.Equal(r.Counted, []int{class}) {
			continue
		}
		var here []int64
		switch r.Kind {
		case planner.Spread:
			here = r.leastSpread(int64(len(pr.Classes[class].Pods)))
		case planner.Apart:
			here = pr.leastApart(r, class)
		case planner.Together:
		}
		sum := int64(0)
		for _, n := range here {
			sum += n
		}
		if sum > most {
			topology, least, most = r.Topology, here, sum
		}
	}
	return topology, least
}

// leastSpread returns the minimum number of n pods in each domain. With m pods in the emptiest domain, the others have at most m + MaxSkew. The
// smallest m that leaves room for all pods is the minimum of each domain.
func (r *rule) leastSpread(n int64) []int64 {
	if r.tooFew || n > maxCount {
		return nil
	}
	fewest := int64(math.MaxInt64)
	for d := range r.domains {
		if r.eligible[d] {
			fewest = min(fewest, r.present(d))
		}
	}
	if fewest == math.MaxInt64 {
		return nil
	}
	room := func(m int64) int64 {
		sum := -r.MaxSkew
		for d := range r.domains {
			if r.eligible[d] {
				sum += max(0, m+r.MaxSkew-r.present(d))
			}
		}
		return sum
	}
	low, high := fewest, fewest+n
	for low < high {
		if m := low + (high-low)/2; room(m) >= n {
			high = m
		} else {
			low = m + 1
		}
	}
	least := make([]int64, r.domains)
	for d := range least {
		if r.eligible[d] {
			least[d] = max(0, low-r.present(d))
		}
	}
	return least
}

// leastApart returns which domains have a pod of a class whose pods keep apart from each other: all existing domains, if there are at least as many
// pods.
func (pr *problem) leastApart(r *rule, class int) []int64 {
	offerings, nodes := pr.labeled(class)
	has := make([]bool, r.domains)
	open := int64(0)
	look := func(domains []int) bool {
		d := pr.domain(domains, r.Topology)
		if d >= 0 && !has[d] {
			has[d] = true
			open++
		}
		return d >= 0
	}
	for _, i := range offerings {
		if !look(pr.Offerings[i].Domains) {
			return nil
		}
	}
	for _, i := range nodes {
		if !look(pr.Nodes[i].Domains) {
			return nil
		}
	}
	if int64(len(pr.Classes[class].Pods)) < open {
		return nil
	}
	least := make([]int64, r.domains)
	for d := range least {
		least[d] = truth(has[d])
	}
	return least
}
