package planner

import "math"

// cut says that so many machines at least are launched of some offers, whole ones, because a group of shapes is served by no others. The relaxation
// launches fractions of them, which is what it misses most where such machines are dear.
type cut struct {
	cover
	serves   []bool // the offers that count
	machines int64
}

// group is the offers that serve a shape, with all shapes that no others serve.
type group struct {
	serves []bool
	shapes []int
	tried  int64 // the most machines that were looked for
}

// Limits on the cuts: rounds of them for one relaxation, the most machines that one may demand, and how near to a whole number a relaxation may be.
const (
	cutRounds = 4
	cutMost   = 40
	cutNear   = 0.01
)

// groups are those of the shapes with demand.
func (h *hunt) groups(demand load) []group {
	var out []group
	known := map[string]bool{}
	for k := range h.shapes {
		g, key := group{serves: make([]bool, len(h.offers))}, make([]byte, len(h.offers))
		for t := range h.offers {
			if h.offers[t].fits[k] > 0 {
				g.serves[t], key[t] = true, 1
			}
		}
		if demand[k] == 0 || known[string(key)] {
			continue
		}
		known[string(key)] = true
		for j := range h.shapes {
			within := demand[j] > 0
			for t := range h.offers {
				within = within && (g.serves[t] || h.offers[t].fits[j] == 0)
			}
			if within {
				g.shapes = append(g.shapes, j)
			}
		}
		out = append(out, g)
	}
	return out
}

// tighten adds cuts to the relaxation of a proof where it launches fractions of what whole machines are needed of.
func (h *hunt) tighten(p *proof) {
	if p.groups == nil {
		p.groups = h.groups(p.demand)
	}
	for _, c := range p.cuts {
		p.g.require(c)
	}
	h.reoptimise(p.g)
	for range cutRounds {
		fresh := false
		for i := range p.groups {
			g := &p.groups[i]
			launched := p.g.launched(g.serves)
			n := math.Ceil(launched - cutNear)
			if n > cutMost || launched > n-cutNear || int64(n) <= g.tried || h.effort.done() {
				continue
			}
			g.tried = int64(n)
			if c := h.cut(g, p.placed, int64(n)); c.machines >= int64(n) {
				p.cuts = append(p.cuts, c)
				p.g.require(c)
				fresh = true
			}
		}
		if !fresh {
			return
		}
		h.reoptimise(p.g)
	}
}

// cut is what a group demands of its offers, by the worth of its pods; for one machine it is enough that they do not all go to nodes.
func (h *hunt) cut(g *group, at load, machines int64) cut {
	c := cut{serves: g.serves}
	values := make([]int64, len(h.shapes))
	if machines > 1 {
		worths := h.values()
		for _, k := range g.shapes {
			values[k] = max(1, worths[k])
		}
		c.cover = h.cover(values, at)
	} else {
		for _, k := range g.shapes {
			values[k] = 1
		}
		c.cover = cover{values: values, need: worth(values, at), most: make([]int64, len(h.offers))}
		for i := range h.nodes {
			var most int64
			for _, k := range g.shapes {
				most += int64(min(at[k], h.nodes[i].fits[k]))
			}
			c.nodes = append(c.nodes, most)
			c.need -= most
		}
		for t, serves := range g.serves {
			if serves {
				c.most[t] = max(0, c.need)
			}
		}
	}
	var most int64
	for _, m := range c.most {
		most = max(most, m)
	}
	if c.need > 0 && most > 0 {
		c.machines = (c.need-1)/most + 1
	}
	return c
}

// charge sets what the cuts of a proof take of the price of each machine to the duals of the relaxation, and returns the prices that are left, and what
// the cuts demand together.
func (h *hunt) charge(p *proof) (left []int64, sum int64) {
	left = make([]int64, len(h.offers))
	for t := range h.offers {
		left[t] = h.offers[t].price
	}
	for i := range p.cuts {
		c := &p.cuts[i]
		c.toll = int64(min(max(0, p.g.y[len(p.g.rows)+i]), float64(h.dearest())))
		for t := range left {
			if c.serves[t] && left[t] <= c.toll {
				// Not at the optimum yet: what is left of each price has to be something.
				c.toll = left[t] - 1
			}
		}
		for t := range left {
			if c.serves[t] {
				left[t] -= c.toll
			}
		}
		sum += c.machines * c.toll
	}
	return left, sum
}

// dearest is the highest price of an offer.
func (p *problem) dearest() int64 {
	var most int64
	for t := range p.offers {
		most = max(most, p.offers[t].price)
	}
	return most
}

// demanding are the covers of the cuts that take a toll.
func (p *proof) demanding() []cover {
	var out []cover
	for i := range p.cuts {
		if p.cuts[i].toll > 0 {
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

// require adds a row to the relaxation: so many machines of some offers at least.
func (m *master) require(c cut) {
	r := len(m.demand)
	row, slack := make([]float64, r+1), -float64(c.machines)
	for i, b := range m.basis {
		if b >= 0 && m.entries[b].offer >= 0 && c.serves[m.entries[b].offer] {
			slack += m.x[i]
			for j, v := range m.inverse[i] {
				row[j] += v
			}
		}
	}
	m.cuts = append(m.cuts, c.serves)
	for i := range m.entries {
		if e := &m.entries[i]; e.offer >= 0 && c.serves[e.offer] {
			e.rows, e.counts = append(e.rows, int32(r)), append(e.counts, 1)
		}
	}
	for t, serves := range c.serves {
		if serves {
			// An empty machine is one too, so that no toll is above a price.
			m.entries = append(m.entries, m.entry(t))
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
	m.basis, m.x, m.demand = append(m.basis, enters), append(m.x, slack), append(m.demand, float64(c.machines))
	m.y, m.w = append(m.y, 0), append(m.w, 0)
	m.setValues()
}

// entry is an empty machine of an offer, with what it counts in the cuts.
func (m *master) entry(offer int) entry {
	e := entry{price: float64(m.p.offers[offer].price), column: -1, offer: offer}
	for i, serves := range m.cuts {
		if serves[offer] {
			e.rows, e.counts = append(e.rows, int32(len(m.rows)+i)), append(e.counts, 1)
		}
	}
	return e
}
