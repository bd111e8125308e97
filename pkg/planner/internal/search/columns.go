package search

import (
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on column generation. They are steps, not seconds, so that a plan is the same on any computer.
const (
	// MaxPivots is the maximum number of pivots of one re-optimization.
	MaxPivots = 600
	// PivotCost is the number of row operations of a pivot that count as one step.
	PivotCost = 400
)

// columnEfforts are the pricing efforts for columns. The smallest effort usually finds the best load; more follows if less finds nothing.
var columnEfforts = []pricing.Effort{{Steps: 60}, {Steps: 600, Parts: 60}, {Steps: 600, Parts: 300}, {Steps: 4000, Parts: 1500}}

// maxCare is the smallest slice in which offers are priced with the highest effort for columns. With that effort, a single round may take longer than
// everything after it.
const maxCare = 100_000

// columns solves the relaxation by column generation. It spends at most the budget, which is a part of the slice of the round.
func (h *primal) columns(slice, budget int64) {
	if h.state.g == nil {
		h.startRelaxation()
		if h.state.hasManyShapes() {
			n := int64(len(h.state.g.rows))
			h.smoothColumns(budget * smoothSlices * max(n*n, smoothRows*smoothRows) / (smoothRows * smoothRows))
			return
		}
	} else if h.ready {
		// The proof may have found columns since.
		h.ready = h.state.ctx.reoptimise(h.state.g) == 0
	}
	for level, until := 0, h.state.ctx.Effort.Left-budget; !h.ready && h.state.ctx.Effort.Left > until && !h.state.ctx.Effort.Done(); {
		asked := h.state.ctx.Asked(h.state.g)
		found := h.state.ctx.PriceAll(h.state.g.Values, h.state.base.Left, columnEfforts[level], func(t int) int64 { return Above(asked(t), 10_000) })
		fresh := h.state.ctx.AddColumns(h.state.g, found)
		nodes := h.state.ctx.priceNodeGroups(h.state.g, h.state.g.Values, h.state.base.Left, columnEfforts[level], 10_000)
		if addNodeColumns(h.state.g, nodes) || fresh {
			h.state.ctx.reoptimise(h.state.g)
			level = 0
			continue
		}
		level++
		if level == len(columnEfforts)-1 && slice < maxCare {
			return
		}
		h.ready = level == len(columnEfforts)
	}
}

// startRelaxation makes the relaxation, with the loads of the best plan.
func (h *primal) startRelaxation() {
	h.state.g = &Master{known: map[string]bool{}}
	h.state.ctx.begin(h.state.g, h.state.base.Left, h.state.base)
	h.state.addPlan(h.state.g)
	h.state.ctx.reoptimise(h.state.g)
}

// addPlan adds the loads of the best plan as columns.
func (h *state) addPlan(g *Master) {
	for _, x := range h.best.Machines {
		g.add(column(x))
	}
	for at := range h.ctx.nodeGroups {
		for _, i := range h.ctx.nodeGroups[at].nodes {
			if l := h.best.onNodes[i]; !l.Empty() {
				g.add(onNodeGroup(at, l))
			}
		}
	}
}

// launchColumn buys machines loaded as in a column, or loads existing nodes that way. It stops when no unplaced pods are left or a limit is reached,
// and reports whether it bought any. If too few pods are left for the whole load, or if the column was reduced before, it assigns GPUs again, which may
// fail.
func (m *Context) launchColumn(s *Solution, c column, times int32, limits pack.Limits) bool {
	if at, ok := c.nodeGroup(); ok {
		return m.occupy(s, at, c.Load, times)
	}
	bought, o := false, &m.Problem.Offers[c.Offer]
	for ; times > 0 && limits.Admits(&o.Charge); times-- {
		l, whole := c.Load, c.Load.Under(s.Left)
		if !whole {
			l = l.Within(s.Left)
		}
		if l.Empty() || (!bought || !whole) && !m.holds(c.Offer, l) {
			break
		}
		limits.Launch(&o.Charge)
		s.Machines = append(s.Machines, Machine{c.Offer, l})
		s.Left.Add(l, -1)
		bought = true
	}
	return bought
}

// residual returns the relaxation for the pods that a plan leaves. It has the usable columns of another relaxation, and the cuts of the proof that the
// machines of the plan do not satisfy. It is valid until the second next call.
func (h *state) residual(g *Master, s *Solution) *Master {
	next := h.ctx.residuals[0]
	h.ctx.residuals[0], h.ctx.residuals[1] = h.ctx.residuals[1], next
	h.ctx.begin(next, s.Left, s)
	next.expect(len(g.columns))
	for _, c := range g.columns {
		if c.Load.Under(s.Left) {
			next.add(c)
		} else if l := c.Load.Within(s.Left); !l.Empty() {
			next.add(column{c.Offer, l})
		}
	}
	if len(next.rows) == 0 {
		return next
	}
	for _, c := range h.cuts {
		for _, x := range s.Machines {
			if c.serves[x.Offer] {
				c.machines--
			}
		}
		if c.machines > 0 {
			next.require(c)
		}
	}
	return next
}
