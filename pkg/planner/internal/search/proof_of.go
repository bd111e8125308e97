package search

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// ProofOf writes the proof of a part in terms of the snapshot. Offerings that another one replaces in every plan hold what that one holds at most, or are not
// worth their price; their entries are those of the one that does, and they count as machines of it.
func ProofOf(p *pack.Problem, b *branch) *planner.Proof {
	switch {
	case b == nil:
		return nil
	case b.atMost == nil && len(b.covers) == 0:
		return nil
	case b.atMost == nil:
		return &planner.Proof{Covers: showCovers(p, b.covers)}
	}
	split := &planner.Split{Few: int(b.few), AtMost: *ProofOf(p, b.atMost), More: *ProofOf(p, b.more)}
	for i := range p.Snapshot.Offerings {
		if lasting(p, i) == p.Offers[b.offer].Index {
			split.Offerings = append(split.Offerings, i)
		}
	}
	return &planner.Proof{Split: split}
}

func showCovers(p *pack.Problem, covers []cover) []planner.Cover {
	var out []planner.Cover
	for _, c := range covers {
		shown := planner.Cover{
			CutDual: planner.MicroUSD(c.dual),
			Worth:   make([]int64, len(p.Snapshot.Classes)), Most: make([]int64, len(p.Snapshot.Offerings)), Nodes: make([]int64, len(p.Snapshot.Nodes)),
		}
		for k := range p.Shapes {
			for _, pod := range p.Shapes[k].Pods {
				shown.Worth[pod.Class] = c.values[k]
			}
		}
		for t := range p.Offers {
			shown.Most[p.Offers[t].Index] = c.most[t]
		}
		for i := range c.nodes {
			shown.Nodes[p.Nodes[i].Index] = c.nodes[i]
		}
		for of, by := range p.Replaced {
			shown.Most[of] = shown.Most[lasting(p, by)]
		}
		out = append(out, shown)
	}
	return out
}

// lasting follows from an offering that was replaced to the one that was not.
func lasting(p *pack.Problem, offering int) int {
	for {
		by, ok := p.Replaced[offering]
		if !ok {
			return offering
		}
		offering = by
	}
}
