package planner

import (
	"fmt"
	"math"
	"slices"
)

// cut says that so many machines at least are launched of some offers, whole ones, because a group of shapes is served by no others. The relaxation
// launches fractions of them, which is what it misses most where such machines are dear.
type cut struct {
	cover    cover
	serves   []bool // the offers that count
	machines int64
}

// group is the offers that serve a shape, with all shapes that no others serve.
type group struct {
	serves []bool
	shapes []int
	tried  int64 // the most machines that were looked for
	cut    cut   // what they demand that was found
}

// Limits on the cuts: rounds of them for one relaxation, the most machines that one may demand, how near to a whole number a relaxation may be, how
// much of its price a cut has to be worth, how many groups there are, and how many offers those have that are looked at together.
const (
	cutRounds = 4
	cutMost   = 40
	cutNear   = 0.01
	cutGain   = 0.001
	maxGroups = 120
	unionMost = 8
)

// groups are those of the shapes with demand, and what those with offers in common are together.
func (h *prover) groups(demand load) []group {
	var out []group
	known := map[string]bool{}
	add := func(serves []bool) bool {
		key := fmt.Sprint(serves)
		if known[key] || len(out) == maxGroups {
			return false
		}
		known[key] = true
		out = append(out, h.group(serves, demand))
		return true
	}
	for k := range h.side.ctx.problem.shapes {
		if demand[k] > 0 {
			serves := make([]bool, len(h.side.ctx.problem.offers))
			for t := range h.side.ctx.problem.offers {
				serves[t] = h.side.ctx.problem.offers[t].fits[k] > 0
			}
			add(serves)
		}
	}
	few := slices.DeleteFunc(slices.Clone(out), func(g group) bool { return g.offers() > unionMost })
	for i := 0; i < len(few); i++ {
		for j := range i {
			if union, common := few[i].with(&few[j]); common && add(union) && out[len(out)-1].offers() <= unionMost {
				few = append(few, out[len(out)-1])
			}
		}
	}
	return out
}

// group is the group of some offers.
func (h *prover) group(serves []bool, demand load) group {
	g := group{serves: serves}
	for k := range h.side.ctx.problem.shapes {
		within := demand[k] > 0
		for t := range h.side.ctx.problem.offers {
			within = within && (serves[t] || h.side.ctx.problem.offers[t].fits[k] == 0)
		}
		if within {
			g.shapes = append(g.shapes, k)
		}
	}
	return g
}

// with is the offers of two groups together, and whether they have any in common.
func (g *group) with(o *group) (union []bool, common bool) {
	union = make([]bool, len(g.serves))
	for t := range union {
		union[t] = g.serves[t] || o.serves[t]
		common = common || g.serves[t] && o.serves[t]
	}
	return union, common
}

// offers is how many offers count.
func (g *group) offers() int {
	n := 0
	for _, s := range g.serves {
		if s {
			n++
		}
	}
	return n
}

// tighten adds cuts to the relaxation of a proof where it launches fractions of what whole machines are needed of.
func (h *prover) tighten(p *proof, g *master) {
	if p.groups == nil {
		p.groups = h.groups(p.demand)
	}
	for _, c := range p.cuts {
		g.require(c.tally())
	}
	h.side.ctx.reoptimise(g)
	if h.side.few() {
		// Branches count the machines of each offer.
		return
	}
	for range cutRounds {
		fresh := false
		for i := range p.groups {
			group := &p.groups[i]
			launched := g.launched(group.serves)
			n := math.Ceil(launched - cutNear)
			if n > cutMost || launched > n-cutNear || h.side.ctx.effort.done() {
				continue
			}
			if gain := float64((n - launched) * h.cheapest(group)); gain < float64(g.total()*cutGain) {
				continue
			}
			if int64(n) > group.tried && h.demandable(group, p.placed, int64(n)) {
				group.tried, group.cut = int64(n), h.cut(group, p.placed, int64(n))
			}
			if group.cut.machines >= int64(n) {
				p.cuts = append(p.cuts, group.cut)
				g.require(group.cut.tally())
				fresh = true
			}
		}
		if !fresh {
			return
		}
		h.side.ctx.reoptimise(g)
	}
}

// cut is what a group demands of its offers: by the worth of its pods or by what they take of a resource, whichever demands most; for one machine it is
// enough that they do not all go to nodes.
func (h *prover) cut(g *group, at load, machines int64) cut {
	if machines == 1 {
		return h.one(g, at)
	}
	best := cut{serves: g.serves}
	for _, measure := range h.measures(at) {
		values := g.values(measure)
		c := cut{serves: g.serves, cover: h.cover(values, at, cutCare)}
		if c.count(); c.machines > best.machines {
			best = c
		}
		if best.machines >= machines {
			break
		}
	}
	return best
}

// values are worths of the pods of a group alone, by a measure.
func (g *group) values(measure []int64) []int64 {
	values := make([]int64, len(measure))
	for _, k := range g.shapes {
		values[k] = max(1, measure[k])
	}
	return values
}

// demandable reports whether a group may demand so many machines: that some machine holds too much of one shape already is seen without a search for loads.
func (h *prover) demandable(g *group, at load, machines int64) bool {
	return machines == 1 || slices.ContainsFunc(h.measures(at), func(measure []int64) bool {
		values, least := g.values(measure), int64(1)
		for t, serves := range g.serves {
			for _, k := range g.shapes {
				if serves {
					least = max(least, values[k]*int64(min(at[k], h.side.ctx.problem.offers[t].fits[k])))
				}
			}
		}
		return (worth(values, at)-1)/least+1 >= machines
	})
}

// cutCare is how offers are priced for cuts.
var cutCare = care{200, 60}

// one says that a group needs a machine at all.
func (h *prover) one(g *group, at load) cut {
	values := make([]int64, len(h.side.ctx.problem.shapes))
	for _, k := range g.shapes {
		values[k] = 1
	}
	c := cut{serves: g.serves, cover: cover{values: values, need: worth(values, at), most: make([]int64, len(h.side.ctx.problem.offers))}}
	for i := range h.side.ctx.problem.nodes {
		var most int64
		for _, k := range g.shapes {
			most += int64(min(at[k], h.side.ctx.problem.nodes[i].fits[k]))
		}
		c.cover.nodes = append(c.cover.nodes, most)
		c.cover.need -= most
	}
	for t, serves := range g.serves {
		if serves {
			c.cover.most[t] = max(0, c.cover.need)
		}
	}
	c.count()
	return c
}

// count sets how many machines keep the cover at least.
func (c *cut) count() {
	if most := slices.Max(c.cover.most); c.cover.need > 0 && most > 0 {
		c.machines = (c.cover.need-1)/most + 1
	}
}

// cheapest is the least price of a group.
func (h *prover) cheapest(g *group) float64 {
	least := h.side.ctx.problem.dearest()
	for t, serves := range g.serves {
		if serves {
			least = min(least, h.side.ctx.problem.offers[t].price)
		}
	}
	return float64(least)
}

// tolls are what the cuts of a proof take of the price of each machine by the duals of the relaxation.
func (h *prover) tolls(p *proof, g *master) []int64 {
	out := make([]int64, len(p.cuts))
	for i := range out {
		out[i] = int64(min(max(0, g.y[len(g.rows)+i]), float64(h.side.ctx.problem.dearest())))
	}
	return out
}

// charge takes the tolls of the cuts off the price of each machine, and returns the prices that are left, and what the cuts demand together.
func (h *prover) charge(p *proof, tolls []int64) (left []int64, sum int64) {
	left = make([]int64, len(h.side.ctx.problem.offers))
	for t := range h.side.ctx.problem.offers {
		left[t] = h.side.ctx.problem.offers[t].price
	}
	for i := range p.cuts {
		c := &p.cuts[i]
		c.cover.toll = tolls[i]
		for t := range left {
			if c.serves[t] && left[t] <= c.cover.toll {
				// Not at the optimum yet: what is left of each price has to be something.
				c.cover.toll = left[t] - 1
			}
		}
		for t := range left {
			if c.serves[t] {
				left[t] -= c.cover.toll
			}
		}
		sum += c.machines * c.cover.toll
	}
	return left, sum
}

// tallies are the cuts as rows of a relaxation.
func (p *proof) tallies() []tally {
	var out []tally
	for i := range p.cuts {
		out = append(out, p.cuts[i].tally())
	}
	return out
}

// demanding are the covers of the cuts that take a toll.
func (p *proof) demanding() []cover {
	var out []cover
	for i := range p.cuts {
		if p.cuts[i].cover.toll > 0 {
			out = append(out, p.cuts[i].cover)
		}
	}
	return out
}

// launched is how many machines of some offers the relaxation launches.
func (m *master) launched(serves []bool) float64 {
	n := 0.0
	for i, b := range m.basis {
		if b >= 0 && m.entries[b].offer >= 0 && serves[m.entries[b].offer] {
			n += m.x[i]
		}
	}
	return n
}

// tally is a cut as a row of a relaxation.
func (c *cut) tally() tally { return tally{c.serves, 1, c.machines} }

// require adds a row to the relaxation.
func (m *master) require(c tally) {
	r, demand := len(m.demand), float64(c.sign*float64(c.machines))
	row, slack := make([]float64, r+1), -demand
	for i, b := range m.basis {
		if b >= 0 && m.entries[b].offer >= 0 && c.serves[m.entries[b].offer] {
			slack += float64(c.sign * m.x[i])
			for j, v := range m.inverse[i] {
				row[j] += float64(c.sign * v)
			}
		}
	}
	m.cuts = append(m.cuts, c)
	for i := range m.entries {
		if e := &m.entries[i]; e.offer >= 0 && c.serves[e.offer] {
			e.rows, e.counts = append(slices.Clip(e.rows), int32(r)), append(slices.Clip(e.counts), c.sign)
		}
	}
	if c.sign > 0 {
		for t, serves := range c.serves {
			if serves {
				// An empty machine is one too, so that no toll is above a price.
				m.entries = append(m.entries, m.entry(t))
			}
		}
	}
	enters, sign := -1-r, -1.0
	if slack < 0 {
		enters, sign, slack = len(m.entries), 1, -slack
		m.entries = append(m.entries, entry{price: 2 * float64(m.p.dearest()), column: -1, offer: -1, rows: []int32{int32(r)}, counts: []float64{1}, basic: true})
	}
	for j := range row {
		row[j] = float64(-sign * row[j])
	}
	row[r] = sign
	for i := range m.inverse {
		m.inverse[i] = append(m.inverse[i], 0)
	}
	m.inverse = append(m.inverse, row)
	m.basis, m.x, m.demand = append(m.basis, enters), append(m.x, slack), append(m.demand, demand)
	m.y, m.w = append(m.y, 0), append(m.w, 0)
	m.setValues()
}

// entry is an empty machine of an offer, with what it counts in the cuts.
func (m *master) entry(offer int) entry {
	e := entry{price: float64(m.p.offers[offer].price), column: -1, offer: offer}
	if m.surcharge != nil {
		e.price += m.surcharge[offer]
	}
	for i, c := range m.cuts {
		if c.serves[offer] {
			e.rows, e.counts = append(e.rows, int32(len(m.rows)+i)), append(e.counts, c.sign)
		}
	}
	return e
}
