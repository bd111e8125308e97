package overview

import (
	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Bound returns a proven lower bound on the price of Karve's nodes for the pods that run on them, in micro-dollars per hour. Nodes that consolidation
// may not change count with their price. It needs the instance types of the node classes. DaemonSets and pods without GPUs may be missing, which only
// lowers the bound. It returns false if nothing was proven before stop returned true.
func Bound(c *facts.Cluster, stop func() bool) (int64, bool) {
	view := snapshot.Build(c)
	l := layout.Build(&view, nil, func(*records.Machine) string { return "" })
	var all int64
	for i := range view.Machines {
		all = amount.Add(all, view.Machines[i].Promise.MicroUSDPerHour)
	}
	if stop() {
		return 0, false
	}
	var movable int64
	for _, m := range l.Machines {
		if m.Reservation == "" { // A slot is paid whether it is used or not.
			movable = amount.Add(movable, m.Promise.MicroUSDPerHour)
		}
	}
	_, bound := consolidate.Bound(solve.Solver{Stop: stop}, l.Layout)
	return min(all, amount.Add(all-movable, int64(bound))), len(view.Machines) > 0
}
