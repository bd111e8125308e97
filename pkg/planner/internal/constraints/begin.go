package constraints

import (
	"math"

	"karve.sh/karve/pkg/planner"
)

// begin chooses the domain for the first pods of a Together rule that has none yet: the domain that holds most of them, and among equals the one where the hint
// places most. It reports whether some may be placed now.
func (c *census) begin() bool {
	for i := range c.problem.rules {
		r := &c.problem.rules[i]
		if r.Kind != planner.Together || r.Topology == planner.PerNode || c.somewhere[i] > 0 || c.begun[i] >= 0 {
			continue
		}
		best, most, mostHinted, price := -1, int64(0), int64(0), int64(0)
		for d := range r.domains {
			c.begun[i] = d
			holds, hinted, dear := c.potential(i, d)
			if holds > 0 && (best < 0 || holds > most || holds == most && (hinted > mostHinted || hinted == mostHinted && dear < price)) {
				best, most, mostHinted, price = d, holds, hinted, dear
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
func (c *census) potential(i, d int) (holds, hinted, price int64) {
	price = math.MaxInt64
	begins := false
	for _, a := range c.problem.rules[i].constrained {
		for _, q := range c.cohorts[a.class] {
			if q.left == 0 || !c.problem.rules[i].binds(q.class, q.given) {
				continue
			}
			var here int64
			for _, x := range q.cells {
				if x.domains[c.problem.rules[i].Topology] != d || x.maxPods == x.pods {
					continue
				}
				begins = begins || c.couldBegin(q, x)
				here = min(q.left, here+min(q.left, x.maxPods-x.pods))
				hinted += max(0, *x.hinted)
				price = min(price, x.price)
			}
			holds += here
		}
	}
	if !begins {
		return 0, 0, 0
	}
	return holds, hinted, price
}

// couldBegin reports whether pods of a cohort could be the first at a cell, if every rule that has no domain yet began there.
func (c *census) couldBegin(q *cohort, x *cell) bool {
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
