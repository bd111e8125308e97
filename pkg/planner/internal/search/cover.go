package search

import (
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// cover is a valid inequality on the machines of a plan: together they must hold an amount of worth, of which each offer holds at most a given amount.
// The most that the nodes hold is already subtracted. Any worths of pods give a cover: duals, a resource, or a single shape.
type cover struct {
	need int64   // the worth that the launched machines must hold together
	most []int64 // the maximum worth that one machine holds, by offer
}

// branch is a set of plans, defined by bounds on the numbers of machines.
type branch struct {
	bound       int64
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

// subtract subtracts the most that the nodes hold from the worth that the launched machines must hold.
func (c *cover) subtract(m *Context, nodeGroups []pricing.Priced) {
	for h := range nodeGroups {
		c.need -= int64(len(m.nodeGroups[h].nodes)) * nodeGroups[h].Upper
	}
}
