package consolidate

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Layout describes the running machines and pods whose cost is to be reduced.
type Layout struct {
	// Snapshot is the current state. Its Nodes have what their pods leave free. Its Classes have the pending pods, and are also the classes of the pods in
	// Machines; a class may have no pending pods. Offerings, pools, refusals and limits are as for a plan.
	Snapshot planner.Snapshot
	// Machines are the nodes that may be removed. Other nodes stay, and can take pods.
	Machines []Machine
	// Most is the number of machines that a step may remove, by pool. It is nil if there is no limit.
	Most []int
}

// Freed returns the snapshot to plan for if some machines (indices into Machines) leave: their pods are pending, their nodes accept none, and the
// limits of their pools and the stocks regain what the machines count.
func (l Layout) Freed(leave []int) planner.Snapshot {
	machines := make([]*Machine, len(leave))
	for i, m := range leave {
		machines[i] = &l.Machines[m]
	}
	return freed(l.Snapshot, machines)
}

// freed is [Layout.Freed] for some machines of a snapshot.
func freed(s planner.Snapshot, leave []*Machine) planner.Snapshot {
	s.Pools, s.Classes, s.Stocks = slices.Clone(s.Pools), slices.Clone(s.Classes), slices.Clone(s.Stocks)
	leaves := make([]bool, len(s.Nodes))
	pending := make([][]string, len(s.Classes))
	for _, m := range leave {
		leaves[m.Node] = true
		giveBackPhysical(&s.Pools[m.Pool].Remaining, m.Physical)
		planner.GiveBack(s.Stocks, m.Draws)
		for _, pod := range m.Pods {
			pending[pod.Class] = append(pending[pod.Class], pod.Name)
		}
	}
	for c := range s.Classes {
		class := &s.Classes[c]
		if pending[c] != nil {
			class.Pods = slices.Concat(class.Pods, pending[c])
			slices.Sort(class.Pods)
		}
		class.Nodes = slices.DeleteFunc(slices.Clone(class.Nodes), func(n int) bool { return leaves[n] })
	}
	return s
}

// Machine is a node of a snapshot that may be removed once its pods have another place.
type Machine struct {
	// Node is an index into Snapshot.Nodes, and Pool one into Snapshot.Pools.
	Node, Pool int
	// Price is the price of the machine per hour.
	Price planner.MicroUSD
	// Physical is what the machine counts against the limits of its pool.
	Physical planner.Physical
	// Draws are what the machine takes from stocks, as in [planner.Offering]. Its price is that of the offering.
	Draws []planner.Draw
	// Pods are the pods of the machine that must move if it is removed. DaemonSets' pods are not among them.
	Pods []Running
}

// Running is a running pod.
type Running struct {
	Name string
	// Class is an index into Snapshot.Classes. The requests, device memory and quotas of the pod are those of the class.
	Class int
	// GPU is the GPU of the node on which the pod is planned, or -1 for a pod that requests no device memory.
	GPU int
	// Move is the cost of moving the pod: how much less per hour the machines must cost for the move to be worthwhile, ≥ 0.
	Move planner.MicroUSD
}

// Outlook describes how a layout can be made cheaper.
type Outlook struct {
	// Steps are independent changes, in the order in which they are best made. Each is valid whether or not the later ones are made.
	Steps []Step
	// Surplus are the nodes (indices into Snapshot.Nodes) that the cheapest layout found does not need, sorted. They include nodes that no step removes.
	Surplus []int
	// Price is the current hourly price of the Machines. Bound is a proven lower bound on the price of machines for all their pods if moves cost nothing.
	Price, Bound planner.MicroUSD
}

// Step removes machines and places their pods elsewhere: on nodes that stay, after the pending pods, and on machines that are launched for them.
type Step struct {
	// Leave are indices into Layout.Machines, sorted.
	Leave []int
	// Launches are the machines to launch, as in a [planner.Plan].
	Launches []planner.Launch
	// Placements are the places of the other pods on nodes that stay. The scheduler may choose others.
	Placements []planner.Placement
	// Saving is how much less the machines cost per hour afterwards, > 0. Moves is the cost of moving the pods, ≤ Saving.
	Saving, Moves planner.MicroUSD
}
