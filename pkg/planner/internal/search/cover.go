package search

import (
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// cover is a valid inequality on the machines of a plan: together they must hold an amount of worth, of which each offer holds at most a given amount.
// The most that the nodes hold is already subtracted. Any worths of pods give a cover: duals, a resource, or a single shape.
type cover struct {
	values []int64 // the worth of one pod of each shape
	need   int64   // the worth that the launched machines must hold together
	most   []int64 // the maximum worth that one machine holds, by offer
	nodes  []int64 // the maximum worth that each node holds
	// dual, if > 0, is the part of the price of each machine with an entry in most that is charged to this cover. The cover contributes it for each whole
	// machine that it needs.
	dual int64
}

// branch is a set of plans, defined by bounds on the numbers of machines. It is bounded by covers, or split in two.
type branch struct {
	bound  int64
	covers []cover // if there are bounds on numbers, the last cover is the one that fractional machines satisfy
	duals  []int64 // of the stocks, as in charged

	// A split branch has one child for the plans that launch at most few machines of the offer, and one for those that launch more.
	offer        int
	few          int64
	atMost, more *branch

	least, most []int64 // machines by offer; a most of -1 is any number
	// from is the relaxation of the parent branch, and row is the row that this branch adds to it.
	from *Master
	row  *cardinality
}

// cardinality is an additional row of a relaxation that limits the number of machines of some offers: at least that many, or at most if the sign is -1.
type cardinality struct {
	serves   []bool
	sign     float64
	machines int64
}

// coverAlone returns the cover of a single shape.
func coverAlone(p *pack.Problem, k int, s *Solution) []cover {
	alone := cover{values: make([]int64, len(p.Shapes)), need: int64(placed(p, s)[k])}
	alone.values[k] = 1
	for t := range p.Offers {
		alone.most = append(alone.most, int64(p.Offers[t].Fits[k]))
	}
	for i := range p.Nodes {
		alone.nodes = append(alone.nodes, int64(p.Nodes[i].Fits[k]))
		alone.need -= int64(p.Nodes[i].Fits[k])
	}
	return []cover{alone}
}

// subtract subtracts the most that the nodes hold from the worth that the launched machines must hold.
func (c *cover) subtract(m *Context, hosts []pricing.Priced) {
	c.nodes = make([]int64, len(m.Problem.Nodes))
	for h := range hosts {
		for _, i := range m.hosts[h].nodes {
			c.nodes[i] = hosts[h].Upper
			c.need -= hosts[h].Upper
		}
	}
}
