package constraints

import (
	"math"

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
	// cohorts has, by class, the cohorts that need domains.
	cohorts map[int][]*cohort
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

// forbids returns the rule that allows no pod of a cohort at a cell, or -1.
func (c *census) forbids(q *cohort, x *cell) int {
	for _, i := range c.problem.about[q.class] {
		if c.problem.rules[i].Topology != planner.PerNode && c.roomOf(i, q.class, q.given, x.domains) == 0 {
			return i
		}
	}
	return -1
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
