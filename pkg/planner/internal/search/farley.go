package search

import (
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// farley returns a lower bound on the price of any plan for the placed pods, from any worths of pods, with the cover and the duals of stocks that give it. If the
// pods are worth V in total, the nodes hold at most U of it, and a machine of offer t holds at most found[t].Upper, then a plan launches machines for V−U, and pays
// at least the minimum of prices[t]/found[t].Upper for each unit of it.
func (m *Context) farley(values []int64, placed pack.Load, found, nodes []pricing.Priced, k charged) (bound int64, c cover, duals []int64) {
	c.need = pack.Worth(values, placed)
	c.subtract(m, nodes)
	best := -1
	for t := range found {
		c.most = append(c.most, found[t].Upper)
		if found[t].Upper > 0 && (best < 0 || amount.CompareProducts(found[t].Upper, k.prices[best], found[best].Upper, k.prices[t]) > 0) {
			best = t
		}
	}
	switch {
	case best < 0 || c.need <= 0:
		return k.sum, c, k.duals
	case m.Problem.Stocked:
		bound, duals = m.farleyWithStocks(&c, k)
		return bound, c, duals
	}
	return amount.MulDivUp(c.need, k.prices[best], found[best].Upper) + k.sum, c, nil
}

// nodeEffort is the pricing effort for nodes, for covers that come from no relaxation.
var nodeEffort = pricing.Effort{Steps: 60}

// Above returns a price plus 1/part of it, in units of 1/pricing.Scale.
func Above(price, part int64) int64 {
	return price*pricing.Scale + price*pricing.Scale/part
}
