package consolidate

import "karve.sh/karve/pkg/planner"

// Layout is what runs where, to be made cheaper by giving machines back.
type Layout struct {
	// Snapshot is what there is. Its Nodes have what their pods leave free, all of them; its Classes have the pods that wait, and are those of the pods in
	// Machines as well: a class may have none that wait. Offerings, pools, refusals and limits are as for a plan.
	Snapshot planner.Snapshot
	// Machines are the nodes that may be given back; nodes that must stay are not among them, and can take pods.
	Machines []Machine
	// Most is how many machines of each pool a step may give back, by the index of the pool; no limit where it is nil.
	Most []int
	// NearEnough is by how many percent the machines may cost more than the bound where that saves moves: as few pods move as bring them there. With 0 all
	// move for which it pays.
	NearEnough int
}

// Machine is a node of a snapshot that may be given back once its pods have another place.
type Machine struct {
	// Node is an index into Snapshot.Nodes, Pool one into Snapshot.Pools.
	Node, Pool int
	// Price is what the machine costs an hour.
	Price planner.MicroUSD
	// Physical is what the pool's limits get back with it.
	Physical planner.Physical
	// Pods are those on it that have to move when it goes, DaemonSets' pods aside.
	Pods []Running
}

// Running is a pod that runs.
type Running struct {
	Name string
	// Class is an index into Snapshot.Classes. Requests, device memory and quotas of the pod are those of the class.
	Class int
	// GPU is the GPU of the node that it is planned on, -1 for a pod that states no device memory.
	GPU int
	// Move is what the machines must cost less an hour for the pod to be moved, ≥ 0.
	Move planner.MicroUSD
}

// Outlook is how a layout could be made cheaper.
type Outlook struct {
	// Steps are changes that each stand for themselves, in the order in which they are best taken, whatever becomes of the later ones.
	Steps []Step
	// Surplus are the nodes (indices into Snapshot.Nodes) that the cheapest layout found does without, those that no step gives back at present as well, be it
	// that the machines cost near enough to the bound; sorted.
	Surplus []int
	// Price is what the Machines cost an hour now, Bound a proven lower bound on what machines for all the pods on them can cost if they all could move for nothing.
	Price, Bound planner.MicroUSD
}

// Step gives machines back and has their pods placed elsewhere: on nodes that stay, after those that wait, and on machines that are launched for them.
type Step struct {
	// Leave are indices into Layout.Machines, sorted.
	Leave []int
	// Launches are what has to be launched, as in a [planner.Plan].
	Launches []planner.Launch
	// Placements is where nodes that stay have room for the other pods. The scheduler may choose otherwise.
	Placements []planner.Placement
	// Saving is by how much the machines cost less an hour afterwards, > 0; Moves is what moving the pods counts, ≤ Saving.
	Saving, Moves planner.MicroUSD
}
