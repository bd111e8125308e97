// Package planner decides which machines to launch for pods that wait for replicas of shared GPUs.
//
// It is pure: plain values in, plain values out, no clock, no client, no randomness, and nothing but the standard
// library. [Build] makes a [Plan] from a [Snapshot], [Check] proves that a plan keeps every rule. All amounts are integers with a
// unit in the name; money is micro-dollars an hour.
package planner

import "math"

// Unlimited is the remaining amount of something that has no limit.
const Unlimited int64 = math.MaxInt64

// MicroUSD is an amount of money in millionths of a US dollar; prices are MicroUSD an hour.
type MicroUSD int64

// Resources is what a pod asks of one node, or what a node has left for pods. Every field is ≥ 0.
type Resources struct {
	// MilliCPU is in thousandths of a CPU.
	MilliCPU int64
	// MemoryBytes is main memory.
	MemoryBytes int64
	// EphemeralBytes is local ephemeral storage.
	EphemeralBytes int64
	// Pods counts pods: 1 for a pod, the free pod slots for a node.
	Pods int64
	// Replicas counts replicas of the GPU resource of the pool that the node belongs to (whole GPUs where nothing is shared).
	Replicas int64
}

// Physical is what a machine counts against the limits of its pool, in hardware, not in replicas.
type Physical struct {
	MilliCPU    int64
	MemoryBytes int64
	GPUs        int64
	// Replicas lets a pool be limited by its renamed shared resource as well.
	Replicas int64
	Nodes    int64
}

// Pool is a NodePool from which machines may be launched.
type Pool struct {
	// Name is the NodePool's name, unique in a snapshot.
	Name string
	// Remaining is what the pool's limits still allow to be launched; [Unlimited] where there is no limit. Values ≤ 0 allow nothing.
	Remaining Physical
	// Limited says why less may be launched than the user's limits leave, to pods that find no room because of it; nil when Remaining is
	// what those limits leave.
	Limited *Refusal
	// Closed says why nothing may be launched from the pool at present; nil when it is open.
	Closed *Refusal
}

// Offering is an instance type in a zone at a capacity type, as one pool would launch it.
type Offering struct {
	// Pool is an index into Snapshot.Pools.
	Pool         int
	InstanceType string
	Zone         string
	CapacityType string
	// Price is per hour, > 0.
	Price MicroUSD
	// Free is what the machine has for pods: allocatable minus DaemonSets, with its replicas.
	Free Resources
	// Physical is what one such machine counts against the pool's limits; Nodes is 1.
	Physical Physical
	// Unavailable says why the offering cannot be launched at present, for instance because the cloud refused it a moment
	// ago; nil when it can.
	Unavailable *Refusal
}

// Node is a machine that exists or is on its way.
type Node struct {
	// Name is unique in a snapshot: the Node's name, or the NodeClaim's while there is no Node.
	Name string
	// Free is what is left on it for waiting pods.
	Free Resources
}

// Class is a set of waiting pods that the scheduler cannot tell apart.
type Class struct {
	// Pods are the names (namespace/name) of the pods, sorted, without repetition, each in one class only.
	Pods []string
	// Requests is what each of the pods asks for; Requests.Pods is 1.
	Requests Resources
	// Offerings are the indices into Snapshot.Offerings of those whose labels and taints admit the pods, whether they are
	// large enough or not; sorted.
	Offerings []int
	// Nodes are the indices into Snapshot.Nodes of those whose labels and taints admit the pods; sorted.
	Nodes []int
	// Blocked says why nothing may be planned for the pods at all; nil for pods to plan for.
	Blocked *Refusal
}

// Snapshot is everything that a plan depends on.
type Snapshot struct {
	Pools     []Pool
	Offerings []Offering
	Nodes     []Node
	Classes   []Class
}

// Reason says in one word why something was refused. The same word is condition reason, event reason and metric label.
type Reason string

// Reasons for a pod to be left without a place.
const (
	// ReasonNoPool: no pool of Karve's admits the pod; its selector, affinity, tolerations or resource name match none.
	ReasonNoPool Reason = "NoMatchingPool"
	// ReasonTooLarge: the pod asks for more than any machine that would admit it has.
	ReasonTooLarge Reason = "TooLarge"
	// ReasonLimitReached: a limit of the pools that admit the pod leaves no room.
	ReasonLimitReached Reason = "LimitReached"
	// ReasonUnavailable: every offering that could hold the pod is refused by the cloud at present.
	ReasonUnavailable Reason = "OfferingsUnavailable"
	// ReasonPoolClosed: the pools that admit the pod launch nothing at present.
	ReasonPoolClosed Reason = "PoolClosed"
	// ReasonUnsupported: the pod uses a scheduling rule that Karve does not plan for yet.
	ReasonUnsupported Reason = "UnsupportedConstraint"
	// ReasonLeftToKarpenter: a NodePool that stock Karpenter manages could serve the pod as well.
	ReasonLeftToKarpenter Reason = "LeftToKarpenter"
	// ReasonRequestsAboveOne: the pool refuses pods that ask for more than one replica.
	ReasonRequestsAboveOne Reason = "RequestsAboveOne"
)

// Refusal is a reason with a sentence that names the objects and says what to do.
type Refusal struct {
	Reason  Reason
	Message string
}

// Launch is one machine to create.
type Launch struct {
	// Offering is an index into Snapshot.Offerings.
	Offering int
	// Pods are the names of the pods that the machine is for, sorted, at least one.
	Pods []string
}

// Placement is a set of pods that a node of the snapshot has room for.
type Placement struct {
	// Node is an index into Snapshot.Nodes.
	Node int
	// Pods are names of pods, sorted, at least one.
	Pods []string
}

// Unplaced is a pod that the plan has no place for, and why.
type Unplaced struct {
	Pod string
	Refusal
}

// Plan is what to do about the waiting pods of a snapshot: every pod of the snapshot is in exactly one Launch, Placement or Unplaced.
type Plan struct {
	Placements []Placement
	Launches   []Launch
	Unplaced   []Unplaced
	// Price is the sum of the prices of the launches, per hour.
	Price MicroUSD
	// Bound is a proven lower bound on the price of any plan that places the same pods; ≤ Price.
	Bound MicroUSD
}
