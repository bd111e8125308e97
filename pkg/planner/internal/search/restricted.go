package search

import "karve.sh/karve/pkg/planner/internal/lp"

// Limits on plans of known columns: the number of rows above which they take too long, and the number of row operations that count as one step.
const (
	composeRows = 80
	composeCost = 130
)

// restrictedMaster is the restricted-master heuristic: it spends at most a slice on the cheapest plan whose machines are loaded as in known columns.
// These are the columns of the relaxation, those that dives found, and the machines of the best plan.
func (h *primal) restrictedMaster(slice int64) {
	if h.state.g.firstCut > composeRows || h.state.best.Left.Total() > 0 {
		return
	}
	until := h.state.ctx.Effort.Left - slice
	g := h.state.residual(h.state.g, h.state.base)
	g.expect(len(h.state.best.Machines) + len(h.state.pool.columns))
	h.state.addPlan(g)
	for _, x := range h.state.pool.columns {
		g.add(x)
	}
	h.state.ctx.reoptimise(g)
	search := lp.Whole{
		IsWhole: func(j int) bool { return g.origins[j].column >= 0 },
		Most:    func() float64 { return float64(h.state.best.cost(h.state.ctx.Problem).Price - 1) },
		Spend:   func(operations int) { h.state.ctx.Effort.Spend(1 + int64(operations/composeCost)) },
		Stopped: func() bool { return h.state.ctx.Effort.Left <= until || h.state.ctx.Effort.Done() },
		Found:   func(taken []lp.Taken) { h.planOf(g, taken) },
	}
	search.Search(&g.LP)
}

// planOf makes a plan of machines that are loaded as in columns of a relaxation, and keeps it if it is better than the best plan.
func (h *primal) planOf(g *Master, taken []lp.Taken) {
	s, limits := h.state.base.clone(), h.state.ctx.Problem.Limits.Clone()
	for _, x := range taken {
		if c := g.origins[x.Column].column; c >= 0 {
			h.state.ctx.launchColumn(s, g.columns[c], int32(x.Amount), limits)
		}
	}
	h.state.ctx.downsize(s)
	h.state.best = better(h.state.ctx.Problem, h.state.best, s)
}
