package planner

// show writes covers in terms of the snapshot. Offerings that another one replaces in every plan hold what that one holds at most, or are not worth
// their price; their entries are those of the one that does.
func (p *problem) show(covers []cover) *Proof {
	if len(covers) == 0 {
		return nil
	}
	var out Proof
	for _, c := range covers {
		shown := Cover{
			Toll:  MicroUSD(c.toll),
			Worth: make([]int64, len(p.snapshot.Classes)), Most: make([]int64, len(p.snapshot.Offerings)), Nodes: make([]int64, len(p.snapshot.Nodes)),
		}
		for k := range p.shapes {
			for _, pod := range p.shapes[k].pods {
				shown.Worth[pod.class] = c.values[k]
			}
		}
		for t := range p.offers {
			shown.Most[p.offers[t].index] = c.most[t]
		}
		for i := range c.nodes {
			shown.Nodes[p.nodes[i].index] = c.nodes[i]
		}
		for of, by := range p.replaced {
			shown.Most[of] = shown.Most[p.lasting(by)]
		}
		out.Covers = append(out.Covers, shown)
	}
	return &out
}

// lasting follows from an offering that was replaced to the one that was not.
func (p *problem) lasting(offering int) int {
	for {
		by, ok := p.replaced[offering]
		if !ok {
			return offering
		}
		offering = by
	}
}
