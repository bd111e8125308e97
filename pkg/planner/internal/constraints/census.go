package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// census counts pods by the domains of the rules whose domains are not machines.
type census struct {
	problem *problem
	// counted has, by rule and domain, the number of pods that the rule counts. constrained has the number of the plan's pods that the rule constrains
	// whatever preferences they give up.
	counted, constrained [][]int64
	// somewhere is, by rule, the number of counted pods anywhere.
	somewhere []int64
	// begun is, by rule, the domain in which the first pods of a Together rule may be placed, or -1 if there is none yet.
	begun []int
	// crowded is, by topology and domain, the maximum number of counted pods of any spread.
	crowded [][]int64
	// now counts the changes. changed is, by rule, the last change that concerned it.
	now     int
	changed []int
	// demands has, by class, the demands that need domains.
	demands map[int][]*demand
}

func newCensus(pr *problem) *census {
	c := &census{problem: pr, changed: make([]int, len(pr.rules)), crowded: make([][]int64, len(pr.Topologies))}
	for t := range pr.Topologies {
		c.crowded[t] = make([]int64, len(pr.Topologies[t].Domains))
	}
	for i := range pr.rules {
		r := &pr.rules[i]
		counted := make([]int64, r.domains)
		for d := range counted {
			counted[d] = r.present(d)
			if r.Kind == planner.Spread {
				c.crowded[r.Topology][d] = max(c.crowded[r.Topology][d], counted[d])
			}
		}
		c.counted, c.constrained = append(c.counted, counted), append(c.constrained, make([]int64, r.domains))
		c.somewhere, c.begun = append(c.somewhere, r.somewhere()), append(c.begun, -1)
	}
	return c
}

// fewest returns the smallest number of counted pods in an eligible domain.
func (c *census) fewest(i int) int64 {
	r := &c.problem.rules[i]
	if r.tooFew {
		return 0
	}
	least := int64(math.MaxInt64)
	for d, n := range c.counted[i] {
		if r.eligible[d] {
			least = min(least, n)
		}
	}
	return least
}

// room returns how many more pods of a class the rules allow in a place, one after another, if the pods have given up the given number of preferences.
func (c *census) room(class, given int, domains []int) int64 {
	n := planner.Unlimited
	for _, i := range c.problem.about[class] {
		if c.problem.rules[i].domains > 0 || c.problem.rules[i].Topology != planner.PerNode {
			n = min(n, c.roomOf(i, class, given, domains))
		}
		if n == 0 {
			return 0
		}
	}
	return n
}

// roomOf returns the room that one rule leaves.
func (c *census) roomOf(i, class, given int, domains []int) int64 {
	r := &c.problem.rules[i]
	asks, counts := r.binds(class, given), r.counts(class)
	d := domains[r.Topology]
	switch {
	case !asks && !counts:
		return planner.Unlimited
	case d < 0 && (!asks || r.Kind == planner.Apart):
		return planner.Unlimited
	case d < 0:
		return 0
	}
	switch r.Kind {
	case planner.Spread:
		return c.roomToSpread(i, asks, counts, d)
	case planner.Together:
		if asks && c.counted[i][d] == 0 && (c.somewhere[i] > 0 || !counts || c.begun[i] != d) {
			return 0
		}
	case planner.Apart:
		return c.roomApart(i, asks, counts, d)
	}
	return planner.Unlimited
}

func (c *census) roomApart(i int, asks, counts bool, d int) int64 {
	switch {
	case asks && c.counted[i][d] > 0, counts && c.constrained[i][d] > 0:
		return 0
	case asks && counts:
		return 1
	}
	return planner.Unlimited
}

func (c *census) roomToSpread(i int, asks, counts bool, d int) int64 {
	r := &c.problem.rules[i]
	if asks && !r.eligible[d] {
		return 0
	}
	most := c.fewest(i) + r.MaxSkew - c.counted[i][d]
	switch {
	case asks && !counts && most >= 0:
		return planner.Unlimited
	case asks, c.constrained[i][d] > 0:
		return max(0, most)
	}
	return planner.Unlimited
}

// add counts pods that go to a place.
func (c *census) add(class int, domains []int, pods int64) {
	c.now++
	for _, i := range c.problem.about[class] {
		r := &c.problem.rules[i]
		if r.Topology == planner.PerNode {
			continue
		}
		c.changed[i] = c.now
		d := domains[r.Topology]
		if r.counts(class) {
			c.somewhere[i] += pods
			if d >= 0 {
				c.counted[i][d] += pods
				if r.Kind == planner.Spread {
					c.crowded[r.Topology][d] = max(c.crowded[r.Topology][d], c.counted[i][d])
				}
			}
		}
		if r.always(class) && d >= 0 {
			c.constrained[i][d] += pods
		}
	}
}

// site is the machines for a stage of a class that are equal as far as rules are concerned.
type site struct {
	// domains are by topology of the snapshot. An entry is -1 if the machines have no domain, or if no rule of the class needs it.
	domains          []int
	offerings, nodes []int
	// price is the lowest price per pod, and math.MaxInt64 if nothing can be launched.
	price int64
	// holds is the known upper limit on the number of pods that fit here, and why explains why no more fit.
	holds int64
	why   *planner.Refusal
	// reach reports whether any pods fit here, ignoring what was learned.
	reach bool
	// pods is the number of pods that are assigned here now. cheap is the number of pods of the class that the plan without the rules places here.
	pods  int64
	cheap *int64
	// favored reports whether pods go here first, at any price.
	favored bool
}

// demand is the pods of one class at one stage that need domains.
type demand struct {
	class, stage, given int
	left                int64
	sites               []*site
	// free reports whether no rule binds the pods, and late whether they are beyond the first stage.
	free, late bool
	// stuck is the change of a census up to which no site had room for the pods. It is 0 if there was none.
	stuck int
}

// open returns the number of sites that would have room for pods of the demand if it were alone.
func (q *demand) open() int {
	n := 0
	for _, x := range q.sites {
		if x.holds > 0 {
			n++
		}
	}
	return n
}

// manner is a strategy for distributing pods: which demands choose first, whether they go to the domain with the fewest pods instead of a cheap one,
// and whether the first pods of Together rules are placed before others that would have to follow them.
type manner struct {
	first  func(c *census, q *demand) int64
	evenly bool
	begin  bool
}

// manners returns the manners that are tried until no pod is left, the cheapest first.
func manners() []manner {
	fewestSites := func(_ *census, q *demand) int64 { return int64(q.open()) }
	mostPods := func(c *census, q *demand) int64 { return -c.atMost(q) }
	freeLast := func(_ *census, q *demand) int64 { return truth(q.free) }
	freeFirst := func(_ *census, q *demand) int64 { return -truth(q.free) }
	return []manner{
		{first: fewestSites},
		{first: fewestSites, evenly: true},
		{first: mostPods},
		{first: freeLast},
		{first: freeFirst},
		{first: mostPods, evenly: true},
		{first: freeLast, begin: true},
	}
}

// atMost returns how many pods of a demand could be placed: one at each site if they keep apart from each other.
func (c *census) atMost(q *demand) int64 {
	for _, i := range c.problem.about[q.class] {
		if r := &c.problem.rules[i]; r.Kind == planner.Apart && r.Topology != planner.PerNode && r.binds(q.class, q.given) && r.counts(q.class) {
			return min(q.left, int64(q.open()))
		}
	}
	return q.left
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// spread decides how many pods of each demand go to which site, as a scheduler that considers prices would: step by step, each within what the rules allow at
// that moment, so that the result keeps the rules.
func (c *census) spread(demands []*demand, m manner) {
	order := slices.Clone(demands)
	slices.SortStableFunc(order, func(x, y *demand) int {
		return cmp.Or(cmp.Compare(truth(x.late), truth(y.late)), cmp.Compare(m.first(c, x), m.first(c, y)), -cmp.Compare(truth(x.free), truth(y.free)))
	})
	c.demands = map[int][]*demand{}
	for _, q := range order {
		q.stuck = 0
		c.demands[q.class] = append(c.demands[q.class], q)
	}
	for left := order; m.begin && c.begin() || c.step(&left, m.evenly) || c.begin(); {
		continue
	}
}

// unchanged reports whether nothing that concerns a demand has changed since no site had room for it.
func (c *census) unchanged(q *demand) bool {
	return q.stuck > 0 && !slices.ContainsFunc(c.problem.about[q.class], func(i int) bool { return c.changed[i] >= q.stuck })
}

// step places pods of the first demand that has a site for any of its pods, and reports whether there was one.
func (c *census) step(demands *[]*demand, evenly bool) bool {
	for len(*demands) > 0 && (*demands)[0].left == 0 {
		*demands = (*demands)[1:]
	}
	for _, q := range *demands {
		if q.left == 0 || c.unchanged(q) {
			continue
		}
		best, most := -1, int64(0)
		for k, x := range q.sites {
			if n := min(q.left, x.holds-x.pods); n > 0 {
				if n = min(n, c.room(q.class, q.given, x.domains)); n > 0 && (best < 0 || c.prefers(q, x, q.sites[best], evenly)) {
					best, most = k, n
				}
			}
		}
		if best < 0 {
			q.stuck = c.now + 1
			continue
		}
		x := q.sites[best]
		if evenly {
			most = min(most, max(1, q.left/64))
		} else if *x.cheap > 0 {
			most = min(most, *x.cheap)
		}
		x.pods += most
		*x.cheap -= most
		q.left -= most
		c.add(q.class, x.domains, most)
		return true
	}
	return false
}

// prefers reports whether pods of a demand prefer site x to site y, which comes first otherwise.
func (c *census) prefers(q *demand, x, y *site, evenly bool) bool {
	if a, b := c.strands(q, x), c.strands(q, y); a != b {
		return a < b
	}
	if a, b := c.opens(q, x), c.opens(q, y); a != b {
		return b
	}
	if x.favored != y.favored {
		return x.favored
	}
	if evenly {
		if a, b := c.crowd(x), c.crowd(y); a != b {
			return a < b
		}
	}
	if a, b := *x.cheap > 0, *y.cheap > 0; a != b {
		return a
	}
	return x.price < y.price
}

// strands returns how many demands that have to follow these pods, or others that are not placed yet, could not follow them to a site.
func (c *census) strands(q *demand, x *site) int {
	n := 0
	for _, i := range c.problem.about[q.class] {
		r := &c.problem.rules[i]
		if r.Kind != planner.Together || r.Topology == planner.PerNode || !r.counts(q.class) {
			continue
		}
		for _, a := range r.constrained {
			for _, other := range c.demands[a.class] {
				if other != q && other.left > 0 && r.binds(other.class, other.given) && !slices.ContainsFunc(other.sites, func(y *site) bool {
					d := y.domains[r.Topology]
					return y.holds > 0 && d >= 0 && (d == x.domains[r.Topology] || c.counted[i][d] > 0)
				}) {
					n++
				}
			}
		}
	}
	return n
}

// opens reports whether a site adds a domain to those that other pods avoid because of pods there. Pods that only prefer to keep away do not count.
func (c *census) opens(q *demand, x *site) bool {
	for _, i := range c.problem.about[q.class] {
		r := &c.problem.rules[i]
		if r.Kind != planner.Apart || r.Topology == planner.PerNode || r.constrains(q.class) && r.counts(q.class) {
			continue
		}
		d := x.domains[r.Topology]
		if d >= 0 && (r.constrains(q.class) && c.constrained[i][d] == 0 || r.counts(q.class) && r.binding() && c.counted[i][d] == 0) {
			return true
		}
	}
	return false
}

// crowd returns the maximum number of counted pods of any spread in the domain of a site.
func (c *census) crowd(x *site) int64 {
	var n int64
	for t, d := range x.domains {
		if d >= 0 {
			n = max(n, c.crowded[t][d])
		}
	}
	return n
}

// begin chooses the domain for the first pods of a Together rule that has none yet: the domain that holds most of them, and among equals the one where
// most are cheap. It reports whether some may be placed now.
func (c *census) begin() bool {
	for i := range c.problem.rules {
		r := &c.problem.rules[i]
		if r.Kind != planner.Together || r.Topology == planner.PerNode || c.somewhere[i] > 0 || c.begun[i] >= 0 {
			continue
		}
		best, most, cheapest, price := -1, int64(0), int64(0), int64(0)
		for d := range r.domains {
			c.begun[i] = d
			holds, cheap, dear := c.potential(i, d)
			if holds > 0 && (best < 0 || holds > most || holds == most && (cheap > cheapest || cheap == cheapest && dear < price)) {
				best, most, cheapest, price = d, holds, cheap, dear
			}
		}
		c.begun[i] = best
		if best >= 0 {
			c.now++
			c.changed[i] = c.now
			return true
		}
	}
	return false
}

// potential returns how many of the waiting pods of a Together rule could be in a domain, how many of them the plan without the rules places there, and
// the lowest price of one.
func (c *census) potential(i, d int) (holds, cheap, price int64) {
	price = math.MaxInt64
	begins := false
	for _, a := range c.problem.rules[i].constrained {
		for _, q := range c.demands[a.class] {
			if q.left == 0 || !c.problem.rules[i].binds(q.class, q.given) {
				continue
			}
			var here int64
			for _, x := range q.sites {
				if x.domains[c.problem.rules[i].Topology] != d || x.holds == x.pods {
					continue
				}
				begins = begins || c.couldBegin(q, x)
				here = min(q.left, here+min(q.left, x.holds-x.pods))
				cheap += max(0, *x.cheap)
				price = min(price, x.price)
			}
			holds += here
		}
	}
	if !begins {
		return 0, 0, 0
	}
	return holds, cheap, price
}

// couldBegin reports whether pods of a demand could be the first at a site, if every rule that has no domain yet began there.
func (c *census) couldBegin(q *demand, x *site) bool {
	var set []int // Only rules that concern the class matter.
	for _, i := range c.problem.about[q.class] {
		if r := &c.problem.rules[i]; r.Kind == planner.Together && r.Topology != planner.PerNode && c.somewhere[i] == 0 && c.begun[i] < 0 {
			c.begun[i] = x.domains[r.Topology]
			set = append(set, i)
		}
	}
	defer func() {
		for _, i := range set {
			c.begun[i] = -1
		}
	}()
	return c.room(q.class, q.given, x.domains) > 0
}
