package pack

import "slices"

// Part returns the problem of a part of the demand, with the nodes of the given indices and within other limits. The k-th shape of the part is shapes[k], and it
// has as many pods as demand has of it. The part has no snapshot, so it has no plan with names: its solutions are translated to those of the whole.
func (p *Problem) Part(shapes []int, demand Load, nodes []int, limits Limits) *Problem {
	part := &Problem{quotas: p.quotas, aparts: p.aparts, Worthiest: p.Worthiest, Limits: limits, Limited: p.Limited, Stocked: p.Stocked}
	at := make([]int, len(p.Shapes))
	for k := range at {
		at[k] = -1
	}
	for k, of := range shapes {
		sh := p.Shapes[of]
		sh.Pods = sh.Pods[:demand[of]]
		part.Shapes, at[of] = append(part.Shapes, sh), k
		part.Stated = part.Stated || sh.States()
	}
	for _, of := range p.byGPU {
		if at[of] >= 0 {
			part.byGPU = append(part.byGPU, at[of])
		}
	}
	fits := make([]int32, 0, (len(p.Offers)+len(nodes))*len(shapes))
	restricted := func(c Capacity) Capacity {
		from := len(fits)
		for _, of := range shapes {
			fits = append(fits, min(c.Fits[of], demand[of]))
		}
		c.Fits = fits[from:len(fits):len(fits)]
		return c
	}
	part.Offers = slices.Clone(p.Offers)
	for t := range part.Offers {
		part.Offers[t].Capacity = restricted(part.Offers[t].Capacity)
	}
	for _, i := range nodes {
		part.Nodes = append(part.Nodes, node{Index: p.Nodes[i].Index, Capacity: restricted(p.Nodes[i].Capacity)})
	}
	return part
}
