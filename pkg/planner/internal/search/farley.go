package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// farley returns a lower bound on the price of any plan for the placed pods, from any worths of pods. If the pods are worth V together, the nodes hold at most
// U of it, and a machine of offer t holds at most found[t].Upper, then a plan launches machines for V−U, and pays at least the minimum of
// prices[t]/found[t].Upper for each unit of it.
func (m *Context) farley(values []int64, placed pack.Load, found []pricing.Priced, prices []int64) (int64, cover) {
	c := cover{values: slices.Clone(values), need: pack.Worth(values, placed)}
	for _, k := range m.NodeKnapsacks {
		root := k.Price(values, placed)
		_, upper := k.Search(placed, nodeSteps, 0)
		c.nodes = append(c.nodes, min(root, upper))
		c.need -= min(root, upper)
		m.Effort.Spend(pricing.PriceCost + nodeSteps - int64(max(0, k.Steps)))
	}
	best := -1
	for t := range found {
		c.most = append(c.most, found[t].Upper)
		if found[t].Upper > 0 && (best < 0 || amount.CompareProducts(found[t].Upper, prices[best], found[best].Upper, prices[t]) > 0) {
			best = t
		}
	}
	if best < 0 || c.need <= 0 {
		return 0, c
	}
	return amount.MulDivUp(c.need, prices[best], found[best].Upper), c
}

// nodeSteps bounds the search for the most valuable load of one node.
const nodeSteps = 60

// Above returns a price plus 1/part of it, in units of 1/pricing.Scale.
func Above(price, part int64) int64 {
	return price*pricing.Scale + price*pricing.Scale/part
}
