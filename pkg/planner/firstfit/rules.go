package firstfit

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// headcount counts the pods of a rule while [Plan] places pods one by one. A machine that can still be in several domains counts in all of them.
type headcount struct {
	planner.Rule
	// counted is the number of counted pods. asking is that of constrained pods. Both are by domain, or by machine if the rule is PerNode.
	counted, asking map[int]int64
	// anywhere is the total number of counted pods.
	anywhere int64
}

// relation is a headcount that concerns a class: whether the rule constrains its pods, and whether it counts them.
type relation struct {
	headcount    *headcount
	asks, counts bool
}

// relations returns, by class, the headcounts that concern it.
func relations(headcounts []*headcount, classes int) [][]relation {
	out := make([][]relation, classes)
	note := func(c int, h *headcount) *relation {
		if n := len(out[c]); n == 0 || out[c][n-1].headcount != h {
			out[c] = append(out[c], relation{headcount: h})
		}
		return &out[c][len(out[c])-1]
	}
	for _, h := range headcounts {
		for _, c := range h.Classes {
			note(c, h).asks = true
		}
		for _, c := range h.Counted {
			note(c, h).counts = true
		}
	}
	return out
}

// newHeadcounts counts the existing pods for all rules, except those that keep pods apart on machines, which fillings handle.
func newHeadcounts(s planner.Snapshot) []*headcount {
	var out []*headcount
	for i, r := range s.Rules {
		r.Classes = demanding(s, i)
		if r.Kind == planner.Apart && r.Topology == planner.PerNode {
			continue
		}
		c := &headcount{Rule: r, counted: map[int]int64{}, asking: map[int]int64{}, anywhere: r.Elsewhere}
		for d, n := range r.Present {
			c.counted[d] += n
			c.anywhere += n
		}
		out = append(out, c)
	}
	return out
}

// demanding returns the classes that a rule binds, without those that only prefer it.
func demanding(s planner.Snapshot, rule int) []int {
	return slices.DeleteFunc(slices.Clone(s.Rules[rule].Classes), func(c int) bool {
		return slices.ContainsFunc(s.Classes[c].Preferences, func(w planner.Preference) bool { return w.Rule == rule })
	})
}

// ruled reports whether a rule that fillings do not handle concerns the class.
func (f *packer) ruled(class int) bool {
	return len(f.about[class]) > 0
}

// domain returns the domain of an option for a rule, or -1 if it has none. For PerNode rules, each machine is its own domain.
func (f *packer) domain(c *headcount, x *order, o int32) int {
	if c.Topology == planner.PerNode {
		return x.machine
	}
	domains := f.nodeOrOfferingDomains(f.options[o])
	if c.Topology < len(domains) {
		return domains[c.Topology]
	}
	return -1
}

func (f *packer) nodeOrOfferingDomains(o option) []int {
	if o.node {
		return f.snapshot.Nodes[o.index].Domains
	}
	return f.snapshot.Offerings[o.index].Domains
}

// placeRuled places the pods of a batch one by one until one finds no place. It returns the number of pods that are not placed.
func (f *packer) placeRuled(p *placing, pods int32) int32 {
	for ; pods > 0; pods-- {
		if !f.placeOne(p) {
			break
		}
	}
	return pods
}

func (f *packer) placeOne(p *placing) bool {
	for _, n := range f.nodes {
		if f.join(p, n) {
			return true
		}
	}
	f.sortOrders()
	for _, o := range f.orders {
		if f.join(p, o) {
			return true
		}
	}
	// A pool with a machine that is large enough may have none in the right domain.
	for _, pool := range f.pools {
		o := f.openFrom(p, pool, func(x *order) bool { return f.join(p, x) })
		if o != nil {
			f.orders = append(f.orders, o)
			return true
		}
	}
	return false
}

// join puts a pod of the batch onto a machine if it has room and the rules allow it.
func (f *packer) join(p *placing, x *order) bool {
	if x.filling.most.Fit(p.request, 1) == 0 || p.lets(x.filling) == 0 {
		return false
	}
	var options []int32
	for _, o := range x.filling.options {
		if p.admitted[o] && p.fit(x.filling, o, 1) > 0 {
			options = append(options, o)
		}
	}
	class := f.batches[p.batch].class
	for _, c := range f.about[class] {
		options = f.allowed(c, x, options)
	}
	if len(options) == 0 {
		return false
	}
	p.settle(x, options, 1)
	x.pods++
	f.record(class, x)
	return true
}

// allowed returns the options of a machine that a rule allows for a pod of a class.
func (f *packer) allowed(c relation, x *order, options []int32) []int32 {
	asks, counts := c.asks, c.counts
	keep := func(ok func(d int) bool) []int32 {
		var kept []int32
		for _, o := range options {
			if ok(f.domain(c.headcount, x, o)) {
				kept = append(kept, o)
			}
		}
		return kept
	}
	alike := func(int) int64 { return 0 }
	switch {
	case c.headcount.Kind == planner.Apart:
		return keep(func(d int) bool {
			return d < 0 || (!asks || c.headcount.counted[d] == 0) && (!counts || c.headcount.asking[d] == 0)
		})
	case !asks:
		return f.oneDomain(c.headcount, x, options, alike)
	case c.headcount.Kind == planner.Spread:
		return f.oneDomain(c.headcount, x, keep(f.spreads(c.headcount, counts)), func(d int) int64 { return c.headcount.counted[d] })
	case c.headcount.anywhere > 0:
		return f.oneDomain(c.headcount, x, keep(func(d int) bool { return d >= 0 && c.headcount.counted[d] > 0 }), alike)
	case !counts:
		return nil
	}
	return f.oneDomain(c.headcount, x, keep(func(d int) bool { return d >= 0 }), alike)
}

// spreads returns a function that reports whether one more pod in a domain is within the skew. self is whether the rule counts that pod.
func (f *packer) spreads(c *headcount, self bool) func(d int) bool {
	most := f.fewest(c) + c.MaxSkew
	if self {
		most--
	}
	return func(d int) bool {
		eligible := c.Topology == planner.PerNode || c.Eligible == nil || slices.Contains(c.Eligible, d)
		return d >= 0 && eligible && c.counted[d] <= most
	}
}

// fewest returns the smallest number of counted pods in an eligible domain of a spread.
func (f *packer) fewest(c *headcount) int64 {
	if c.Topology == planner.PerNode {
		return 0
	}
	least, domains := int64(math.MaxInt64), 0
	for d := range f.snapshot.Topologies[c.Topology].Domains {
		if c.Eligible == nil || slices.Contains(c.Eligible, d) {
			least = min(least, c.counted[d])
			domains++
		}
	}
	if int64(domains) < c.MinDomains || domains == 0 {
		return 0
	}
	return least
}

// oneDomain keeps the options of one domain: the one with the least weight, and among equals the one with the cheapest option.
func (f *packer) oneDomain(c *headcount, x *order, options []int32, weight func(d int) int64) []int32 {
	best, bestWeight, bestPrice := -2, int64(0), planner.MicroUSD(0)
	for _, o := range options {
		d := f.domain(c, x, o)
		var price planner.MicroUSD
		if !f.options[o].node {
			price = f.snapshot.Offerings[f.options[o].index].Price
		}
		if w := weight(d); best == -2 || w < bestWeight || w == bestWeight && price < bestPrice {
			best, bestWeight, bestPrice = d, w, price
		}
	}
	return slices.DeleteFunc(slices.Clone(options), func(o int32) bool { return f.domain(c, x, o) != best })
}

// record counts a pod of a class that has joined a machine.
func (f *packer) record(class int, x *order) {
	for _, c := range f.about[class] {
		asks, counts := c.asks, c.counts
		if counts {
			c.headcount.anywhere++
		}
		seen := map[int]bool{}
		for _, o := range x.filling.options {
			d := f.domain(c.headcount, x, o)
			if seen[d] {
				continue
			}
			seen[d] = true
			if counts {
				c.headcount.counted[d]++
			}
			if asks {
				c.headcount.asking[d]++
			}
		}
	}
}
