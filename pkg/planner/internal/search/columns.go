package search

import (
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on the search for columns. They are steps, not seconds, so that a plan is the same on any machine.
const (
	// MaxPivots of one re-optimisation.
	MaxPivots = 600
	// PivotCost is what so many row operations of a pivot count, in steps.
	PivotCost = 400
)

// columnEfforts is how offers are priced for columns: the best load is mostly found at once; more care follows when less finds nothing.
var columnEfforts = []pricing.Effort{{Steps: 60}, {Steps: 600, Parts: 60}, {Steps: 600, Parts: 300}, {Steps: 4000, Parts: 1500}}

// mostCare is the least slice in which offers are priced with the most care for columns: with that a single round may take more than all that follows has.
const mostCare = 100_000

// columns solves the relaxation for what no node takes: columns are added while some machine can be filled with more than its price is worth.
// It spends the budget at most, a part of the slice of the round.
func (h *primal) columns(slice, budget int64) {
	if h.state.g == nil {
		h.state.g = NewMaster(h.state.ctx.Problem, h.state.base.Left)
		for _, x := range h.state.best.Machines {
			h.state.g.add(column(x))
		}
		h.state.ctx.reoptimise(h.state.g)
	} else if pivots := h.state.g.pivots; h.ready {
		// The proof may have found columns since.
		h.state.ctx.reoptimise(h.state.g)
		h.ready = h.state.g.pivots == pivots
	}
	for level, until := 0, h.state.ctx.Effort.Left-budget; !h.ready && h.state.ctx.Effort.Left > until && !h.state.ctx.Effort.Done(); {
		found := h.state.ctx.PriceAll(h.state.g.Values, h.state.base.Left, columnEfforts[level], func(t int) int64 { return Above(h.state.ctx.Problem.Offers[t].Price, 10_000) })
		if h.state.ctx.AddColumns(h.state.g, found) {
			h.state.ctx.reoptimise(h.state.g)
			level = 0
			continue
		}
		level++
		if level == len(columnEfforts)-1 && slice < mostCare {
			return
		}
		h.ready = level == len(columnEfforts)
	}
}

// AddColumns adds the loads that were found as columns, and reports whether any was new.
func (m *Context) AddColumns(g *Master, found []pricing.Priced) bool {
	fresh := false
	for t := range found {
		for _, l := range found[t].Loads {
			if g.add(column{t, l}) {
				fresh = true
			}
		}
	}
	return fresh
}

// reoptimise solves the relaxation with the columns that it has.
func (m *Context) reoptimise(g *Master) {
	n := int64(len(g.Rows))
	m.Effort.Spend(int64(g.Solve(MaxPivots, m.Effort.Stopped)) * (1 + n*n/PivotCost))
}

// launchColumn buys machines loaded as a column says, as far as pods wait and the limits admit, and reports whether it bought any. Where too few pods wait for
// a load, and for a column that was made smaller before, GPUs have to be found anew, and it may be that none are.
func (m *Context) launchColumn(s *Solution, c column, times int32, limits []amount.Usage) bool {
	bought, o := false, &m.Problem.Offers[c.Offer]
	for ; times > 0 && limits[o.Pool].Admits(o.Uses); times-- {
		l, whole := c.Load, c.Load.Under(s.Left)
		if !whole {
			l = l.Within(s.Left)
		}
		if l.Empty() || (!bought || !whole) && !m.holds(c.Offer, l) {
			break
		}
		limits[o.Pool].Launch(o.Uses)
		s.Machines = append(s.Machines, Machine{c.Offer, l})
		s.Left.Add(l, -1)
		bought = true
	}
	return bought
}

// residual is the relaxation for what a plan leaves, with the columns of another one as far as they go, and with the cuts of the proof as far as
// the machines of the plan do not keep them. It is good until the one after the next is asked for, unless it is kept.
func (h *state) residual(g *Master, s *Solution) *Master {
	next := h.ctx.residuals[0]
	h.ctx.residuals[0], h.ctx.residuals[1] = h.ctx.residuals[1], next
	next.begin(h.ctx.Problem, s.Left)
	next.expect(len(g.columns))
	for _, c := range g.columns {
		if c.Load.Under(s.Left) {
			next.add(c)
		} else if l := c.Load.Within(s.Left); !l.Empty() {
			next.add(column{c.Offer, l})
		}
	}
	if len(next.Rows) == 0 {
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

// retain has a relaxation be good for longer.
func (m *Context) retain(g *Master) {
	for i := range m.residuals {
		if m.residuals[i] == g {
			m.residuals[i] = &Master{known: map[string]bool{}}
		}
	}
}
