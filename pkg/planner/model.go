// Package planner is the model of a plan: which machines to launch for pods that wait for replicas of shared GPUs.
//
// A [Snapshot] is everything that a [Plan] depends on; [Validate] says whether it makes sense. Package solve makes plans, check judges them, firstfit packs as
// Karpenter does, alternatives adds the offerings that a claim may name beside, and consolidate gives running machines back. README.md explains the algorithm.
//
// All of it is pure: plain values in, plain values out, no clock, no client, no randomness, and nothing but the standard library. All amounts are integers
// with a unit in the name; money is micro-dollars an hour.
package planner

import "math"

// Unlimited is the remaining amount of something that has no limit.
const Unlimited int64 = math.MaxInt64

// MicroUSD is an amount of money in millionths of a US dollar; prices are MicroUSD an hour.
type MicroUSD int64

// MaxPrice is the dearest machine that is planned with, a million dollars an hour; together with the number of pods
// that memory can hold it keeps every sum of prices within an int64.
const MaxPrice = 1 << 40

// MaxAmount bounds every amount of [Resources], [GPU], [Amount] and [Physical]: 8 PiB in bytes. The planner is exact up to it; who makes a snapshot saturates
// what is larger, and blocks the pods that ask for it.
const MaxAmount int64 = 1 << 53

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

// negative reports whether any amount is below zero.
func (r Resources) negative() bool {
	return min(r.MilliCPU, r.MemoryBytes, r.EphemeralBytes, r.Pods, r.Replicas) < 0
}

// GPU is what one GPU of a machine has left for pods. Every field is ≥ 0.
type GPU struct {
	Replicas int64
	// MemoryBytes is device memory.
	MemoryBytes int64
}

// Quota is something countable of which a machine has only so much, beside its [Resources]: an extended resource, attachments of a volume
// driver, a port of the host, the pods of a workload that one node may have.
type Quota struct {
	// Name says what is counted, for people, for instance "example.com/fpga" or "host port 8080/TCP".
	Name string
	// Each is what a machine has for pods when its offering or node says nothing; [Unlimited] where only some are limited.
	Each int64
}

// Amount is so much of a quota.
type Amount struct {
	// Quota is an index into Snapshot.Quotas.
	Quota int
	// Count is ≥ 0.
	Count int64
}

// Topology is a label of nodes by whose values pods are spread, kept together or kept apart.
type Topology struct {
	// Key is the label, for instance topology.kubernetes.io/zone.
	Key string
	// Domains are the values that it has on nodes or could have on launched machines; sorted, without repetition.
	Domains []string
}

// PerNode is the Topology of rules whose domains are the machines themselves (kubernetes.io/hostname).
const PerNode = -1

// RuleKind says what a [Rule] demands.
type RuleKind string

const (
	// Spread means that no domain that gets a pod has more than MaxSkew counted pods more than the eligible domain with the fewest.
	Spread RuleKind = "Spread"
	// Together means that a pod is in a domain with a counted pod. While there is no counted pod anywhere, one that counts itself may begin.
	Together RuleKind = "Together"
	// Apart means that no pod shares a domain with another counted pod, whichever of the two comes first.
	Apart RuleKind = "Apart"
)

// Rule is a demand of pods on where other pods are. It is about the places at the end: those of pods that run, and those of the plan.
type Rule struct {
	Kind RuleKind
	// Name is how the rule is called in the pod's own terms, for people, for instance "podAntiAffinity on topology.kubernetes.io/zone".
	Name string
	// Topology is an index into Snapshot.Topologies, or [PerNode].
	Topology int
	// Classes are the indices of the classes whose pods make the demand, Counted of those whose pods it counts; sorted.
	Classes []int
	Counted []int
	// Present is how many counted pods there are already, by domain of the topology, by node of the snapshot where it is [PerNode]; missing
	// entries are 0. Apart has none: where running pods forbid a place, the class does not list it.
	Present []int64
	// Elsewhere is how many counted pods there are already outside of those domains and nodes.
	Elsewhere int64
	// MaxSkew and MinDomains are those of Spread, MaxSkew ≥ 1. With fewer eligible domains than MinDomains the fewest counts as 0.
	MaxSkew    int64
	MinDomains int64
	// Eligible are the domains that count for Spread, sorted; all when nil. Pods that ask go to no others. Not for [PerNode], where a new machine can always have none.
	Eligible []int
}

// Wish is what pods would like but can do without.
type Wish struct {
	// Offerings and Nodes are those that grant the wish, sorted, as in [Class]; of no meaning when Rule is set.
	Offerings []int
	Nodes     []int
	// Rule, when ≥ 0, is the index of the rule that is the wish; the rule binds this class only as long as the wish stands.
	Rule int
}

// MinValues is a demand of a NodePool that each of its claims leaves a choice (minValues of a requirement).
type MinValues struct {
	// Key is the label of the requirement.
	Key string
	// Min is how many values a claim must leave, ≥ 1.
	Min int
	// Values is the value that each offering of the snapshot has, by its index; "" where it has none.
	Values []string
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
	// Weight orders pools: a pod goes to the heaviest pool that can have a machine for it.
	Weight int32
	// MinValues are the choices that each machine of the pool must leave.
	MinValues []MinValues
	// MaxPremium is how much dearer than the offering of a launch its alternatives may be, in hundredths of its price, ≥ 0.
	MaxPremium int64
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
	// GPUs are the GPUs of the machine; their replicas sum to Free.Replicas. Empty where nothing is known of them: then no pod that
	// states device memory fits.
	GPUs []GPU
	// Quotas are what the machine has of quotas, after DaemonSets, where that is not Quota.Each; sorted by quota.
	Quotas []Amount
	// Domains is the domain of the machine by topology of the snapshot, -1 where it has no such label; missing entries are -1.
	Domains []int
	// Choice are the labels that the pool chooses for the machine, in one string. A claim has one such choice for all machines that it names.
	Choice string
}

// Node is a machine that exists or is on its way.
type Node struct {
	// Name is unique in a snapshot: the Node's name, or the NodeClaim's while there is no Node.
	Name string
	// Free is what is left on it for waiting pods.
	Free Resources
	// GPUs are what is left on each of its GPUs, in the order of their indices. Their replicas sum to Free.Replicas or more.
	GPUs []GPU
	// Quotas are what is left of quotas where that is not Quota.Each; sorted by quota.
	Quotas []Amount
	// Domains is as in [Offering].
	Domains []int
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
	// Unserved says why no offering admits the pods although pools are meant for them; nil where that is not known, or some do.
	Unserved *Refusal
	// GPUMemoryBytes is the device memory that each pod states; all its replicas and all that memory are then on one GPU. 0 for pods that
	// state none: their replicas may be on any GPUs.
	GPUMemoryBytes int64
	// Quotas are what each pod takes of quotas, sorted by quota.
	Quotas []Amount
	// Priority decides between pods that cannot all have a place: the higher ones have theirs.
	Priority int32
	// Wishes are what the pods would like beside, in the order in which they are given up, for a pod that finds no place otherwise.
	Wishes []Wish
}

// Snapshot is everything that a plan depends on.
type Snapshot struct {
	Pools     []Pool
	Offerings []Offering
	Nodes     []Node
	Classes   []Class
	// Quotas, Topologies and Rules are what classes, offerings and nodes speak of.
	Quotas     []Quota
	Topologies []Topology
	Rules      []Rule
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
	// ReasonRule: the places that a rule of the scheduler (spread, affinity, anti-affinity) leaves to the pod are full or do not exist.
	ReasonRule Reason = "RuleUnsatisfiable"
	// ReasonVolumes: a volume of the pod is not there or not bound, and no machine would change that.
	ReasonVolumes Reason = "VolumesNotReady"
	// ReasonNextRound: there was no time to plan for the pod; it is planned for in the next round.
	ReasonNextRound Reason = "PlannedNextRound"
	// ReasonRequestsAboveOne: the pool refuses pods that ask for more than one replica.
	ReasonRequestsAboveOne Reason = "RequestsAboveOne"
	// ReasonSetAside: no plan that includes the pod keeps the rules, so the others are planned without it; see solve.Contain.
	ReasonSetAside Reason = "SetAside"
)

// Refusal is a reason with a sentence that names the objects and says what to do.
type Refusal struct {
	Reason  Reason
	Message string
}

// NextRound is the refusal of pods that there was no time to plan for.
var NextRound = Refusal{ReasonNextRound, "planned in the next round: there are more pods with rules of their own (affinity, anti-affinity, topology spread) than one plan has time for"}

// Launch is one machine to create.
type Launch struct {
	// Offering is an index into Snapshot.Offerings.
	Offering int
	// Pods are the names of the pods that the machine is for, sorted, at least one.
	Pods []string
	// GPUs is the GPU of each of Pods, an index into the offering's GPUs, -1 for a pod that states no device memory; nil when none does.
	GPUs []int
	// Alternatives are other offerings of the same pool that hold the pods as well, the cheapest first, which the claim names beside Offering: those
	// that it has to name for the pool's MinValues, or else those that alternatives.Add finds.
	Alternatives []int
}

// Placement is a set of pods that a node of the snapshot has room for.
type Placement struct {
	// Node is an index into Snapshot.Nodes.
	Node int
	// Pods are names of pods, sorted, at least one.
	Pods []string
	// GPUs is as in [Launch], an index into the node's GPUs.
	GPUs []int
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
	// Proof is what Bound rests on; nil where nothing is launched, where every way to place the pods was tried, and where rules, wishes,
	// priorities, weights or choices had a say.
	Proof *Proof
}

// Proof shows that no plan for the pods that a plan places is cheaper than its bound: the machines that are launched have to keep each of the covers,
// and no machines, in whole numbers, do so at a lower price.
type Proof struct {
	Covers []Cover
	// Split, when not nil, proves the bound for two parts of all plans instead, one by one.
	Split *Split
}

// Split parts plans by how many machines of some offerings they launch.
type Split struct {
	// Offerings are those that count, indices into Snapshot.Offerings. No two splits count an offering together with different others.
	Offerings []int
	// AtMost is for the plans that launch at most Few machines of them, More for all others.
	Few          int
	AtMost, More Proof
}

// Cover is a demand on machines that follows from worths of pods, in any unit: those of a plan are worth so much together, what is launched holds what
// the nodes do not. An offering with an entry of 0 in Most is not launched.
type Cover struct {
	// Worth is what each pod is worth, by class.
	Worth []int64
	// Most is no less than what one machine of each offering can hold, by offering.
	Most []int64
	// Nodes is no less than what each node can hold in addition, by node.
	Nodes []int64
	// CutDual, when > 0, is the part of the price of each machine with an entry in Most that is for this cover alone: it says how many of them there are
	// at least, so many times the toll is paid, and the other covers are kept at what is left of the prices.
	CutDual MicroUSD
}
