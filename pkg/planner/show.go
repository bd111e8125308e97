package planner

// showProof writes the proof of a part in terms of the snapshot. Offerings that another one replaces in every plan hold what that one holds at most, or are not
// worth their price; their entries are those of the one that does, and they count as machines of it.
func showProof(p *problem, b *branch) *Proof {
	switch {
	case b == nil:
		return nil
	case b.atMost == nil && len(b.covers) == 0:
		return nil
	case b.atMost == nil:
		return &Proof{Covers: showCovers(p, b.covers)}
	}
	split := &Split{Few: int(b.few), AtMost: *showProof(p, b.atMost), More: *showProof(p, b.more)}
	for i := range p.snapshot.Offerings {
		if lasting(p, i) == p.offers[b.offer].index {
			split.Offerings = append(split.Offerings, i)
		}
	}
	return &Proof{Split: split}
}

func showCovers(p *problem, covers []cover) []Cover {
	var out []Cover
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
			shown.Most[of] = shown.Most[lasting(p, by)]
		}
		out = append(out, shown)
	}
	return out
}

// lasting follows from an offering that was replaced to the one that was not.
func lasting(p *problem, offering int) int {
	for {
		by, ok := p.replaced[offering]
		if !ok {
			return offering
		}
		offering = by
	}
}
