package search

import (
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on the cuts.
const (
	cutRounds = 4     // rounds for one relaxation
	maxCut    = 40    // machines that a cut may require
	cutNear   = 0.01  // tolerance for whole numbers
	cutGain   = 0.001 // fraction of the relaxation's price that a cut must gain
	maxGroups = 120
	maxUnion  = 8 // offers of a group that is combined with others
)

// groups returns the groups of the shapes with demand, and unions of groups that share offers.
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
	few := slices.DeleteFunc(slices.Clone(out), func(g group) bool { return g.offers() > maxUnion })
	for i := 0; i < len(few); i++ {
		for j := range i {
			if union, common := few[i].with(&few[j]); common && add(union) && out[len(out)-1].offers() <= maxUnion {
				few = append(few, out[len(out)-1])
			}
		}
	}
	return out
}

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

// with returns the union of the offers of two groups, and whether they share any.
func (g *group) with(o *group) (union []bool, common bool) {
	union = make([]bool, len(g.serves))
	for t := range union {
		union[t] = g.serves[t] || o.serves[t]
		common = common || g.serves[t] && o.serves[t]
	}
	return union, common
}

func (g *group) offers() int {
	n := 0
	for _, s := range g.serves {
		if s {
			n++
		}
	}
	return n
}

// tighten adds cuts to the relaxation of a proof where it launches too few machines, as fractions.
func (h *dual) tighten(p *proof, g *Master) {
	if p.groups == nil {
		p.groups = h.groups(p.launched)
	}
	for _, c := range p.cuts {
		g.require(c)
	}
	h.state.ctx.reoptimise(g)
	if h.state.few() {
		// Branches bound the numbers of machines of each offer.
		return
	}
	for range cutRounds {
		fresh, machines := false, g.launched()
		for i := range p.groups {
			group := &p.groups[i]
			launched := 0.0
			for t, serves := range group.serves {
				if serves {
					launched += machines[t]
				}
			}
			n := math.Ceil(launched - cutNear)
			if n > maxCut || launched > n-cutNear || h.state.ctx.Effort.Done() {
				continue
			}
			if gain := float64((n - launched) * h.cheapest(group)); gain < float64(g.LP.Cost()*cutGain) {
				continue
			}
			if int64(n) > group.tried && h.demandable(group, p.placed, int64(n)) {
				group.tried, group.cut = int64(n), h.cut(group, p.placed, int64(n))
			}
			if group.cut.machines >= int64(n) {
				p.cuts = append(p.cuts, group.cut)
				g.require(group.cut)
				fresh = true
			}
		}
		if !fresh {
			return
		}
		h.state.ctx.reoptimise(g)
	}
}

// cut returns the cut of a group. It is derived from the worth of the pods or from their requests of a resource, whichever requires more machines. A
// group needs one machine anyway, because the nodes cannot take all of its pods.
func (h *dual) cut(g *group, at pack.Load, machines int64) cardinality {
	if machines == 1 {
		return cardinality{g.serves, 1, 1}
	}
	best := cardinality{g.serves, 1, 0}
	for _, measure := range h.measures(at) {
		c := h.cover(g.values(measure), at, cutEffort)
		if best.machines = max(best.machines, c.machines()); best.machines >= machines {
			break
		}
	}
	return best
}

// values returns the worths of the pods of the group by a measure, and 0 for other pods.
func (g *group) values(measure []int64) []int64 {
	values := make([]int64, len(measure))
	for _, k := range g.shapes {
		values[k] = max(1, measure[k])
	}
	return values
}

// demandable reports whether a group may require that many machines, judging by how many pods of a single shape one machine holds. It needs no search
// for loads.
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

var cutEffort = pricing.Effort{Steps: 200, Parts: 60}

// machines returns the minimum number of machines that satisfy the cover.
func (c *cover) machines() int64 {
	if most := slices.Max(c.most); c.need > 0 && most > 0 {
		return (c.need-1)/most + 1
	}
	return 0
}

// cheapest returns the lowest price of the offers of a group.
func (h *dual) cheapest(g *group) float64 {
	least := h.state.ctx.Problem.Dearest()
	for t, serves := range g.serves {
		if serves {
			least = min(least, h.state.ctx.Problem.Offers[t].Price)
		}
	}
	return float64(least)
}

// cutDuals returns the duals of the cuts in the relaxation, as parts of the price of each machine. They are 0 without a relaxation.
func (h *dual) cutDuals(p *proof, g *Master) []int64 {
	out := make([]int64, len(p.cuts))
	for i := range out {
		if g == nil {
			break
		}
		out[i] = int64(min(max(0, g.LP.Duals()[g.firstCut+i]), float64(h.state.ctx.Problem.Dearest())))
	}
	return out
}

// charge adds the duals of the stocks in a relaxation to the price of each machine, and subtracts those of the cuts. The relaxation may be nil.
func (h *dual) charge(p *proof, g *Master) charged {
	ctx, cutDuals := h.state.ctx, h.cutDuals(p, g)
	duals := ctx.stockDuals(g)
	left, sum := make([]int64, len(ctx.Problem.Offers)), -supply(ctx.Problem.Limits, duals)
	for t := range left {
		o := &ctx.Problem.Offers[t]
		left[t] = amount.Saturating(o.Price, drawn(o, duals))
	}
	for i, c := range p.cuts {
		dual := cutDuals[i]
		for t := range left {
			if c.serves[t] && left[t] <= dual {
				// The relaxation is not optimal yet: a positive part of each price has to remain.
				dual = left[t] - 1
			}
		}
		for t := range left {
			if c.serves[t] {
				left[t] -= dual
			}
		}
		sum += c.machines * dual
	}
	return charged{left, duals, sum, len(p.cuts) == 0}
}
