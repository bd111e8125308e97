package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// assign gives the cohorts their cells, with the first heuristic that leaves the fewest pods without one.
func (r *rounds) assign(cohorts []*cohort) {
	spread := func(m heuristic) int64 {
		r.reset(cohorts)
		newCensus(r.problem).spread(cohorts, m)
		var left int64
		for _, q := range cohorts {
			left += q.left
		}
		return left
	}
	tried := heuristics()
	best, fewest := 0, int64(math.MaxInt64)
	for i, m := range tried {
		if left := spread(m); left < fewest {
			best, fewest = i, left
		}
		if fewest == 0 || len(cohorts) == 1 {
			break
		}
		if i == len(tried)-1 {
			spread(tried[best])
		}
	}
}

// reset removes the pods that were assigned to cells.
func (r *rounds) reset(cohorts []*cohort) {
	r.countHint()
	for _, q := range cohorts {
		q.left = r.waiting[q.class][q.stage]
		for _, x := range q.cells {
			x.pods = 0
			x.hinted = r.hintedPods(q.class, x.domains)
		}
	}
}

// countHint counts the pods of the plan without the rules, by cell.
func (r *rounds) countHint() {
	r.hinted = map[int]map[string]*int64{}
	if r.arranger.hint == nil {
		plan, binds := r.arranger.relax(r.arranger.given, shareOfHint)
		r.arranger.hint, r.arranger.hintBinds = &plan, binds
	}
	class := map[string]int{}
	for c := range r.problem.Classes {
		if r.local[c] {
			for _, pod := range r.problem.Classes[c].Pods {
				class[pod] = c
			}
		}
	}
	count := func(pods []string, domains []int) {
		for _, pod := range pods {
			if c, ok := class[pod]; ok {
				*r.hintedPods(c, r.domainsOf(c, domains))++
			}
		}
	}
	for _, x := range r.arranger.hint.Placements {
		count(x.Pods, r.problem.Nodes[x.Node].Domains)
	}
	for _, l := range r.arranger.hint.Launches {
		count(l.Pods, r.problem.Offerings[l.Offering].Domains)
	}
}

// hintedPods returns the counter of pods of a class that the hint places in domains.
func (r *rounds) hintedPods(class int, domains []int) *int64 {
	if r.hinted[class] == nil {
		r.hinted[class] = map[string]*int64{}
	}
	key := keyOf(domains)
	if r.hinted[class][key] == nil {
		r.hinted[class][key] = new(int64)
	}
	return r.hinted[class][key]
}

// heuristic is a strategy for distributing pods: which cohorts choose first, whether they go to the domain with the fewest pods instead of a cheap one,
// and whether the first pods of Together rules are placed before others that would have to follow them.
type heuristic struct {
	first  func(c *census, q *cohort) int64
	evenly bool
	begin  bool
}

// heuristics returns the heuristics that are tried until no pod is left, the cheapest first.
func heuristics() []heuristic {
	fewestCells := func(_ *census, q *cohort) int64 { return int64(q.open()) }
	mostPods := func(c *census, q *cohort) int64 { return -c.atMost(q) }
	unboundLast := func(_ *census, q *cohort) int64 { return truth(q.unbound) }
	unboundFirst := func(_ *census, q *cohort) int64 { return -truth(q.unbound) }
	return []heuristic{
		{first: fewestCells},
		{first: fewestCells, evenly: true},
		{first: mostPods},
		{first: unboundLast},
		{first: unboundFirst},
		{first: mostPods, evenly: true},
		{first: unboundLast, begin: true},
	}
}

// atMost returns how many pods of a cohort could be placed: one at each cell if they keep apart from each other.
func (c *census) atMost(q *cohort) int64 {
	for _, i := range c.problem.about[q.class] {
		if r := &c.problem.rules[i]; r.Kind == planner.Apart && r.Topology != planner.PerNode && r.binds(q.class, q.given) && r.counts(q.class) {
			return min(q.left, int64(q.open()))
		}
	}
	return q.left
}

// spread decides how many pods of each cohort go to which cell, as a scheduler that considers prices would: step by step, each within what the rules allow at
// that moment, so that the result keeps the rules.
func (c *census) spread(cohorts []*cohort, m heuristic) {
	order := slices.Clone(cohorts)
	slices.SortStableFunc(order, func(x, y *cohort) int {
		return cmp.Or(cmp.Compare(truth(x.late), truth(y.late)), cmp.Compare(m.first(c, x), m.first(c, y)), -cmp.Compare(truth(x.unbound), truth(y.unbound)))
	})
	c.cohorts = map[int][]*cohort{}
	for _, q := range order {
		q.noRoomSince = 0
		c.cohorts[q.class] = append(c.cohorts[q.class], q)
	}
	for left := order; m.begin && c.begin() || c.step(&left, m.evenly) || c.begin(); {
		continue
	}
}

// unchanged reports whether nothing that concerns a cohort has changed since no cell had room for it.
func (c *census) unchanged(q *cohort) bool {
	return q.noRoomSince > 0 && !slices.ContainsFunc(c.problem.about[q.class], func(i int) bool { return c.changed[i] >= q.noRoomSince })
}

// step places pods of the first cohort that has a cell for any of its pods, and reports whether there was one.
func (c *census) step(cohorts *[]*cohort, evenly bool) bool {
	for len(*cohorts) > 0 && (*cohorts)[0].left == 0 {
		*cohorts = (*cohorts)[1:]
	}
	for _, q := range *cohorts {
		if q.left == 0 || c.unchanged(q) {
			continue
		}
		best, most := -1, int64(0)
		for k, x := range q.cells {
			if n := min(q.left, x.maxPods-x.pods); n > 0 {
				if n = min(n, c.room(q.class, q.given, x.domains)); n > 0 && (best < 0 || c.prefers(x, q.cells[best], evenly)) {
					best, most = k, n
				}
			}
		}
		if best < 0 {
			q.noRoomSince = c.now + 1
			continue
		}
		x := q.cells[best]
		if evenly {
			most = min(most, max(1, q.left/64))
		} else if *x.hinted > 0 {
			most = min(most, *x.hinted)
		}
		x.pods += most
		*x.hinted -= most
		q.left -= most
		c.add(q.class, x.domains, most)
		return true
	}
	return false
}

// prefers reports whether pods prefer cell x to cell y, which comes first otherwise.
func (c *census) prefers(x, y *cell, evenly bool) bool {
	if x.favored != y.favored {
		return x.favored
	}
	if evenly {
		if a, b := c.crowd(x), c.crowd(y); a != b {
			return a < b
		}
	}
	if a, b := *x.hinted > 0, *y.hinted > 0; a != b {
		return a
	}
	return x.price < y.price
}

// crowd returns the maximum number of counted pods of any spread in the domain of a cell.
func (c *census) crowd(x *cell) int64 {
	var n int64
	for t, d := range x.domains {
		if d >= 0 {
			n = max(n, c.crowded[t][d])
		}
	}
	return n
}
