package search

import (
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
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
func (h *dual) groups(demand pack.Load) []group {
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
	for k := range h.state.ctx.Problem.Shapes {
		if demand[k] > 0 {
			serves := make([]bool, len(h.state.ctx.Problem.Offers))
			for t := range h.state.ctx.Problem.Offers {
				serves[t] = h.state.ctx.Problem.Offers[t].Fits[k] > 0
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
func (h *dual) group(serves []bool, demand pack.Load) group {
	g := group{serves: serves}
	for k := range h.state.ctx.Problem.Shapes {
		within := demand[k] > 0
		for t := range h.state.ctx.Problem.Offers {
			within = within && (serves[t] || h.state.ctx.Problem.Offers[t].Fits[k] == 0)
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
func (h *dual) tighten(p *proof, g *Master) {
	if p.groups == nil {
		p.groups = h.groups(p.demand)
	}
	for _, c := range p.cuts {
		g.require(c.row())
	}
	h.state.ctx.reoptimise(g)
	if h.state.few() {
		// Branches count the machines of each offer.
		return
	}
	for range cutRounds {
		fresh := false
		for i := range p.groups {
			group := &p.groups[i]
			launched := g.launched(group.serves)
			n := math.Ceil(launched - cutNear)
			if n > cutMost || launched > n-cutNear || h.state.ctx.Effort.Done() {
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
				g.require(group.cut.row())
				fresh = true
			}
		}
		if !fresh {
			return
		}
		h.state.ctx.reoptimise(g)
	}
}

// cut is what a group demands of its offers: by the worth of its pods or by what they take of a resource, whichever demands most; for one machine it is
// enough that they do not all go to nodes.
func (h *dual) cut(g *group, at pack.Load, machines int64) cut {
	if machines == 1 {
		return h.one(g, at)
	}
	best := cut{serves: g.serves}
	for _, measure := range h.measures(at) {
		values := g.values(measure)
		c := cut{serves: g.serves, cover: h.cover(values, at, cutEffort)}
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
func (h *dual) demandable(g *group, at pack.Load, machines int64) bool {
	return machines == 1 || slices.ContainsFunc(h.measures(at), func(measure []int64) bool {
		values, least := g.values(measure), int64(1)
		for t, serves := range g.serves {
			for _, k := range g.shapes {
				if serves {
					least = max(least, values[k]*int64(min(at[k], h.state.ctx.Problem.Offers[t].Fits[k])))
				}
			}
		}
		return (pack.Worth(values, at)-1)/least+1 >= machines
	})
}

// cutEffort is how offers are priced for cuts.
var cutEffort = pricing.Effort{Steps: 200, Parts: 60}

// one says that a group needs a machine at all.
func (h *dual) one(g *group, at pack.Load) cut {
	values := make([]int64, len(h.state.ctx.Problem.Shapes))
	for _, k := range g.shapes {
		values[k] = 1
	}
	c := cut{serves: g.serves, cover: cover{values: values, need: pack.Worth(values, at), most: make([]int64, len(h.state.ctx.Problem.Offers))}}
	for i := range h.state.ctx.Problem.Nodes {
		var most int64
		for _, k := range g.shapes {
			most += int64(min(at[k], h.state.ctx.Problem.Nodes[i].Fits[k]))
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
func (h *dual) cheapest(g *group) float64 {
	least := h.state.ctx.Problem.Dearest()
	for t, serves := range g.serves {
		if serves {
			least = min(least, h.state.ctx.Problem.Offers[t].Price)
		}
	}
	return float64(least)
}

// cutDuals are what the cuts of a proof take of the price of each machine by the duals of the relaxation.
func (h *dual) cutDuals(p *proof, g *Master) []int64 {
	out := make([]int64, len(p.cuts))
	for i := range out {
		out[i] = int64(min(max(0, g.Y[len(g.Rows)+i]), float64(h.state.ctx.Problem.Dearest())))
	}
	return out
}

// charge takes the tolls of the cuts off the price of each machine, and returns the prices that are left, and what the cuts demand together.
func (h *dual) charge(p *proof, tolls []int64) (left []int64, sum int64) {
	left = make([]int64, len(h.state.ctx.Problem.Offers))
	for t := range h.state.ctx.Problem.Offers {
		left[t] = h.state.ctx.Problem.Offers[t].Price
	}
	for i := range p.cuts {
		c := &p.cuts[i]
		c.cover.dual = tolls[i]
		for t := range left {
			if c.serves[t] && left[t] <= c.cover.dual {
				// Not at the optimum yet: what is left of each price has to be something.
				c.cover.dual = left[t] - 1
			}
		}
		for t := range left {
			if c.serves[t] {
				left[t] -= c.cover.dual
			}
		}
		sum += c.machines * c.cover.dual
	}
	return left, sum
}

// rows are the cuts as rows of a relaxation.
func (p *proof) rows() []cardinality {
	var out []cardinality
	for i := range p.cuts {
		out = append(out, p.cuts[i].row())
	}
	return out
}

// demanding are the covers of the cuts that take a toll.
func (p *proof) demanding() []cover {
	var out []cover
	for i := range p.cuts {
		if p.cuts[i].cover.dual > 0 {
			out = append(out, p.cuts[i].cover)
		}
	}
	return out
}

// launched is how many machines of some offers the relaxation launches.
func (m *Master) launched(serves []bool) float64 {
	n := 0.0
	for i, b := range m.Basis {
		if b >= 0 && m.Entries[b].Offer >= 0 && serves[m.Entries[b].Offer] {
			n += m.X[i]
		}
	}
	return n
}

// row is a cut as a row of a relaxation.
func (c *cut) row() cardinality { return cardinality{c.serves, 1, c.machines} }

// require adds a row to the relaxation.
func (m *Master) require(c cardinality) {
	r, demand := len(m.Demand), float64(c.sign*float64(c.machines))
	row, slack := make([]float64, r+1), -demand
	for i, b := range m.Basis {
		if b >= 0 && m.Entries[b].Offer >= 0 && c.serves[m.Entries[b].Offer] {
			slack += float64(c.sign * m.X[i])
			for j, v := range m.Inverse[i] {
				row[j] += float64(c.sign * v)
			}
		}
	}
	m.cuts = append(m.cuts, c)
	for i := range m.Entries {
		if e := &m.Entries[i]; e.Offer >= 0 && c.serves[e.Offer] {
			e.Rows, e.Counts = append(slices.Clip(e.Rows), int32(r)), append(slices.Clip(e.Counts), c.sign)
		}
	}
	if c.sign > 0 {
		for t, serves := range c.serves {
			if serves {
				// An empty machine is one too, so that no toll is above a price.
				m.Entries = append(m.Entries, m.entry(t))
			}
		}
	}
	enters, sign := -1-r, -1.0
	if slack < 0 {
		enters, sign, slack = len(m.Entries), 1, -slack
		m.Entries = append(m.Entries, Entry{Price: 2 * float64(m.p.Dearest()), Column: -1, Offer: -1, Rows: []int32{int32(r)}, Counts: []float64{1}, Basic: true})
	}
	for j := range row {
		row[j] = float64(-sign * row[j])
	}
	row[r] = sign
	for i := range m.Inverse {
		m.Inverse[i] = append(m.Inverse[i], 0)
	}
	m.Inverse = append(m.Inverse, row)
	m.Basis, m.X, m.Demand = append(m.Basis, enters), append(m.X, slack), append(m.Demand, demand)
	m.Y, m.W = append(m.Y, 0), append(m.W, 0)
	m.setValues()
}

// entry is an empty machine of an offer, with what it counts in the cuts.
func (m *Master) entry(offer int) Entry {
	e := Entry{Price: float64(m.p.Offers[offer].Price), Column: -1, Offer: offer}
	if m.surcharge != nil {
		e.Price += m.surcharge[offer]
	}
	for i, c := range m.cuts {
		if c.serves[offer] {
			e.Rows, e.Counts = append(e.Rows, int32(len(m.Rows)+i)), append(e.Counts, c.sign)
		}
	}
	return e
}
