package search

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// ProofOf returns the proof of a branch in terms of the snapshot. A dominated offering holds at most what the offering that dominates it holds, or is not
// worth its price. Its entries are those of the dominating offering, and its machines count as machines of that.
func ProofOf(p *pack.Problem, b *branch) *planner.Proof {
	switch {
	case b == nil:
		return nil
	case b.atMost == nil && len(b.covers) == 0:
		return nil
	case b.atMost == nil:
		return &planner.Proof{Covers: showCovers(p, b.covers), Duals: b.duals}
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

// lasting returns the offering that finally dominates a dominated one.
func lasting(p *pack.Problem, offering int) int {
	for {
		by, ok := p.Replaced[offering]
		if !ok {
			return offering
		}
		offering = by
	}
}
