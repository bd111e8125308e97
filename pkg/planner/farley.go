package planner

import "slices"

// farley returns a lower bound on the price of any plan for the placed pods, from any worths of pods whatsoever: the pods are worth V,
// the nodes can hold U of it at most, and a machine of offer t at most found[t].upper; so a plan launches machines for V−U, and
// pays at least the least prices[t]/upper[t] for each unit of it.
func (m *mixer) farley(values []int64, placed load, found []priced, prices []int64) (int64, cover) {
	c := cover{values: slices.Clone(values), need: worth(values, placed)}
	for _, k := range m.noded {
		root := k.price(values, placed)
		_, upper := k.search(placed, nodeSteps, 0)
		c.nodes = append(c.nodes, min(root, upper))
		c.need -= min(root, upper)
		m.effort.spend(priceCost + nodeSteps - int64(max(0, k.steps)))
	}
	best := -1
	for t := range found {
		c.most = append(c.most, found[t].upper)
		if found[t].upper > 0 && (best < 0 || compareProducts(found[t].upper, prices[best], found[best].upper, prices[t]) > 0) {
			best = t
		}
	}
	if best < 0 || c.need <= 0 {
		return 0, c
	}
	return mulDivUp(c.need, prices[best], found[best].upper), c
}

// nodeSteps bounds the search for the most valuable load of one node.
const nodeSteps = 60

// above returns a price and the given part of it, in units of valueScale.
func above(price, part int64) int64 {
	return price*valueScale + price*valueScale/part
}
