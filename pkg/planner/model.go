// Package planner is the model of a plan: which machines to launch for pending pods that request replicas of shared GPUs.
//
// A [Snapshot] holds everything that a [Plan] depends on, and [Validate] checks it. Package solve makes plans, check verifies them, firstfit packs as
// Karpenter does, alternatives adds other offerings that a NodeClaim may name, and consolidate decides which running machines to remove. README.md explains
// the algorithm.
//
// The packages are pure functions of plain values: they use no clock, no client, no randomness, and only the standard library. All amounts are integers with a
// unit in the name. Money is in micro-dollars per hour.
package planner

import (
	"math"
	"slices"
)

// Unlimited is the remaining amount of something that has no limit.
const Unlimited int64 = math.MaxInt64

// MicroUSD is an amount of money in millionths of a US dollar. Prices are MicroUSD per hour.
type MicroUSD int64

// MaxPrice is the highest price of a machine that the planner accepts, about a million dollars per hour. With it, no sum of prices over the pods that fit in
// memory overflows an int64.
const MaxPrice = 1 << 40

// MaxAmount limits every amount of [Resources], [GPU], [Amount] and [Physical]: 8 PiB in bytes. The planner is exact up to it. Code that makes a
// snapshot saturates larger amounts and blocks the pods that request them.
const MaxAmount int64 = 1 << 53

// Resources are what a pod requests of one node, or what a node has left for pods. Every field is ≥ 0.
type Resources struct {
	// MilliCPU is in thousandths of a CPU.
	MilliCPU int64
	// MemoryBytes is main memory.
	MemoryBytes int64
	// EphemeralBytes is local ephemeral storage.
	EphemeralBytes int64
	// Pods is the number of pods: 1 for a pod, the free pod slots for a node.
	Pods int64
	// Replicas is the number of replicas of the GPU resource of the node's pool. If GPUs are not shared, it counts whole GPUs.
	Replicas int64
}

// negative reports whether any amount is below zero.
func (r Resources) negative() bool { return !r.Covers(Resources{}) }

// Covers reports whether no amount is below that of x.
func (r Resources) Covers(x Resources) bool {
	return r.MilliCPU >= x.MilliCPU && r.MemoryBytes >= x.MemoryBytes && r.EphemeralBytes >= x.EphemeralBytes && r.Pods >= x.Pods && r.Replicas >= x.Replicas
}

// Minus returns the difference of each amount.
func (r Resources) Minus(x Resources) Resources {
	return r.Each(x, func(a, b int64) int64 { return a - b })
}

// Each returns what a function makes of the two amounts of each resource.
func (r Resources) Each(x Resources, of func(a, b int64) int64) Resources {
	return Resources{
		MilliCPU: of(r.MilliCPU, x.MilliCPU), MemoryBytes: of(r.MemoryBytes, x.MemoryBytes), EphemeralBytes: of(r.EphemeralBytes, x.EphemeralBytes),
		Pods: of(r.Pods, x.Pods), Replicas: of(r.Replicas, x.Replicas),
	}
}

// GPU is what one GPU of a machine has left for pods. Every field is ≥ 0.
type GPU struct {
	Replicas int64
	// MemoryBytes is device memory.
	MemoryBytes int64
}

// Quota is a countable thing, other than [Resources], of which each machine has a limited amount: an extended resource, attachments of a volume driver,
// a host port, or the pods of a workload that one node may have.
type Quota struct {
	// Name describes what is counted, for people, for example "example.com/fpga" or "host port 8080/TCP".
	Name string
	// Each is what a machine has for pods if its offering or node does not state an amount. It is [Unlimited] if only some machines are limited.
	Each int64
}

// Amount is an amount of a quota.
type Amount struct {
	// Quota is an index into Snapshot.Quotas.
	Quota int
	// Count is ≥ 0.
	Count int64
}

// Topology is a node label whose values are the domains across which pods are spread, kept together or kept apart.
type Topology struct {
	// Key is the label, for example topology.kubernetes.io/zone.
	Key string
	// Domains are the values that the label has on nodes or could have on launched machines. They are sorted and unique.
	Domains []string
}

// PerNode is the Topology of rules whose domains are the machines themselves (kubernetes.io/hostname).
const PerNode = -1

// RuleKind is what a [Rule] requires.
type RuleKind string

const (
	// Spread means that a domain that gets a pod has at most MaxSkew counted pods more than the eligible domain with the fewest.
	Spread RuleKind = "Spread"
	// Together means that a pod shares its domain with a counted pod. If there is no counted pod anywhere, a pod that the rule counts may be the first.
	Together RuleKind = "Together"
	// Apart means that a pod shares its domain with no other counted pod, whichever of the two is placed first.
	Apart RuleKind = "Apart"
)

// Rule constrains where pods may be, given where other pods are. It applies to the final placement: that of running pods together with that of the plan.
type Rule struct {
	Kind RuleKind
	// Name describes the rule in the pod's own terms, for people, for example "podAntiAffinity on topology.kubernetes.io/zone".
	Name string
	// Topology is an index into Snapshot.Topologies, or [PerNode].
	Topology int
	// Classes are the indices of the classes that the rule constrains. Counted are those of the classes whose pods it counts. Both are sorted.
	Classes []int
	Counted []int
	// Present is the number of counted pods that exist already, by domain of the topology, or by node of the snapshot if the topology is [PerNode]. Missing
	// entries are 0. An Apart rule has none: a class does not list the places that running pods exclude.
	Present []int64
	// Elsewhere is the number of counted pods that exist already outside of those domains and nodes.
	Elsewhere int64
	// MaxSkew (≥ 1) and MinDomains are those of a Spread rule. If there are fewer eligible domains than MinDomains, the minimum counts as 0.
	MaxSkew    int64
	MinDomains int64
	// Eligible are the domains that count for Spread, sorted. If it is nil, all count. The constrained pods may only go to eligible domains. It is not used
	// for [PerNode], because a new machine always has a count of 0.
	Eligible []int
}

// Preference is a preference of pods: they can be placed without it.
type Preference struct {
	// Offerings and Nodes are those that satisfy the preference, sorted, as in [Class]. They are ignored if Rule is set.
	Offerings []int
	Nodes     []int
	// Rule is the index of the rule that is preferred, if it is ≥ 0. The rule binds this class only until the preference is given up.
	Rule int
}

// MinValues is a requirement of a NodePool on the number of values that each NodeClaim must allow (minValues of a requirement).
type MinValues struct {
	// Key is the label of the requirement.
	Key string
	// Min is the number of values that a NodeClaim must allow, ≥ 1.
	Min int
	// Values are the values of the label, by offering of the snapshot. A value is "" if the offering has none.
	Values []string
}

// Physical is what a machine counts against the limits of its pool, in hardware.
type Physical struct {
	MilliCPU    int64
	MemoryBytes int64
	GPUs        int64
	// Replicas is the number of replicas, for pools that limit their renamed shared resource.
	Replicas int64
	Nodes    int64
}

// Pool is a NodePool from which machines may be launched.
type Pool struct {
	// Name is the NodePool's name. It is unique in a snapshot.
	Name string
	// Remaining is what the pool's limits still allow to be launched, and [Unlimited] if there is no limit. Values ≤ 0 allow nothing.
	Remaining Physical
	// Limited explains why less may be launched than the user's limits allow. Pods that find no capacity because of it get this refusal. It is nil if
	// Remaining is what those limits allow.
	Limited *Refusal
	// Closed is why the pool launches nothing now. It is nil if the pool may launch.
	Closed *Refusal
	// Weight orders pools: a pod goes to the pool with the highest weight that can have a machine for it.
	Weight int32
	// MinValues are the requirements on the choice that each NodeClaim of the pool must allow.
	MinValues []MinValues
	// MaxPremium is how much more the alternatives of a launch may cost than its offering, in percent, ≥ 0.
	MaxPremium int64
}

// Stock is something of which only a limited amount is left at the price of the offerings that draw from it: the slots of a capacity reservation, or the
// dollars per hour of a savings plan.
type Stock struct {
	// Name is unique in a snapshot, and stocks are sorted by it. It names the stock for people, for example the id of a reservation.
	Name string
	// Left is how much of it is left, from 0 to [MaxAmount]: machines, or MicroUSD per hour.
	Left int64
}

// Draw is what one machine of an offering takes from a stock.
type Draw struct {
	// Stock is an index into Snapshot.Stocks.
	Stock int
	// Amount is from 1 to [MaxAmount].
	Amount int64
}

// Offering is an instance type in a zone at a capacity type, as one pool would launch it.
type Offering struct {
	// Pool is an index into Snapshot.Pools.
	Pool         int
	InstanceType string
	Zone         string
	CapacityType string
	// Price is what the machine costs per hour, > 0. ListPrice is what the cloud takes it to cost when it chooses one of the offerings of a NodeClaim, ≥ 0.
	Price, ListPrice MicroUSD
	// Surcharge is the part of Price that is not paid per hour, but because the machine works longer than others for the same work. It is ≥ 0 and less than Price.
	Surcharge MicroUSD
	// Free is what the machine has for pods: allocatable minus DaemonSets, including its replicas.
	Free Resources
	// Physical is what one such machine counts against the pool's limits. Nodes is 1.
	Physical Physical
	// Draws are what one such machine takes from stocks, sorted by stock. It is empty if there is no limit to the number of such machines.
	Draws []Draw
	// Unavailable is why the offering cannot be launched now, for example because the cloud has just refused it. It is nil if the offering can be
	// launched.
	Unavailable *Refusal
	// GPUs are the GPUs of the machine. Their replicas sum to Free.Replicas. It is empty if the GPUs are unknown; then no pod that requests device memory
	// fits.
	GPUs []GPU
	// Quotas are what the machine has of quotas, after DaemonSets, if that differs from Quota.Each. They are sorted by quota.
	Quotas []Amount
	// Domains are the domains of the machine by topology of the snapshot. An entry is -1 if the machine has no such label; missing entries are -1.
	Domains []int
	// Choice identifies the labels that the pool chooses for the machine. All offerings of a NodeClaim have the same choice.
	Choice string
}

// Paid returns what the machine costs per hour without the surcharge.
func (o Offering) Paid() MicroUSD { return o.Price - o.Surcharge }

// Repriced reports whether the offering x of the same pool is no other choice beside o for the cloud: it draws from a stock or has a surcharge, or it is the machine of o
// at its other price.
func Repriced(o, x Offering) bool {
	return len(x.Draws) > 0 || x.Surcharge > 0 || (len(o.Draws) > 0 || o.Surcharge > 0) && x.InstanceType == o.InstanceType && x.Zone == o.Zone && x.CapacityType == o.CapacityType && x.Choice == o.Choice &&
		x.Free == o.Free && x.Physical == o.Physical && slices.Equal(x.GPUs, o.GPUs) && slices.Equal(x.Quotas, o.Quotas)
}

// Node is a machine that exists or is being launched.
type Node struct {
	// Name is unique in a snapshot. It is the name of the Node, or of the NodeClaim if there is no Node yet.
	Name string
	// Free is the capacity that the node has left for pending pods.
	Free Resources
	// GPUs are the capacities left on each GPU, in the order of their indices. Their replicas sum to at least Free.Replicas.
	GPUs []GPU
	// Quotas are the amounts left of quotas, if they differ from Quota.Each. They are sorted by quota.
	Quotas []Amount
	// Domains is as in [Offering].
	Domains []int
}

// Class is a set of pending pods that are identical to the scheduler.
type Class struct {
	// Pods are the names (namespace/name) of the pods, sorted and unique. Each pod is in one class only.
	Pods []string
	// Requests are what each pod requests. Requests.Pods is 1.
	Requests Resources
	// Offerings are the indices into Snapshot.Offerings of those whose labels and taints admit the pods, including those that are too small. They are sorted.
	Offerings []int
	// Nodes are the indices into Snapshot.Nodes of those whose labels and taints admit the pods. They are sorted.
	Nodes []int
	// Blocked is why nothing may be planned for the pods. It is nil if they can be planned for.
	Blocked *Refusal
	// NoOffering is why no offering admits the pods although there are pools for them, or which rule excludes all offerings. It is nil if that is unknown, or if
	// some offering admits them.
	NoOffering *Refusal
	// GPUMemoryBytes is the device memory that each pod requests. All replicas of the pod and all of that memory must be on one GPU. It is 0 for pods that
	// request none: their replicas may be on any GPUs.
	GPUMemoryBytes int64
	// Quotas are what each pod takes of quotas, sorted by quota.
	Quotas []Amount
	// Priority decides which pods are placed if there is no room for all: those with higher priority.
	Priority int32
	// Preferences are the preferences of the pods, in the order in which they are given up for a pod that cannot be placed otherwise.
	Preferences []Preference
}

// Group is a set of pods that are of use only together, such as those of a training job.
type Group struct {
	// Name names the group for people, for example "PodGroup ml/train". It is unique in a snapshot.
	Name string
	// Classes are the indices of the classes of its pods, sorted. A class is in one group at most, and all its pods are in the group.
	Classes []int
	// Min is how many of the pods a plan must place if it places any, ≥ 1. Pods of the group that have a node already count no longer.
	Min int64
	// Holds reports that while the group has no place, the room of its pods on machines that were launched for it is kept for it.
	Holds bool
}

// Snapshot holds everything that a plan depends on.
type Snapshot struct {
	Pools     []Pool
	Offerings []Offering
	Nodes     []Node
	Classes   []Class
	// Stocks are what offerings draw from.
	Stocks []Stock
	// Quotas, Topologies and Rules are what classes, offerings and nodes refer to.
	Quotas     []Quota
	Topologies []Topology
	Rules      []Rule
	// Groups are placed in this order where there is no room for all of the same priority.
	Groups []Group
}

// Reason is a one-word reason why something was refused. It is used as condition reason, event reason and metric label.
type Reason string

// Reasons why a pod is not placed.
const (
	// ReasonNoPool: no pool of Karve admits the pod. Its selector, affinity, tolerations or resource name match none.
	ReasonNoPool Reason = "NoMatchingPool"
	// ReasonTooLarge: the pod requests more than any machine that would admit it has.
	ReasonTooLarge Reason = "TooLarge"
	// ReasonLimitReached: the pools that admit the pod have reached a limit.
	ReasonLimitReached Reason = "LimitReached"
	// ReasonUnavailable: the cloud refuses every offering that could hold the pod at present.
	ReasonUnavailable Reason = "OfferingsUnavailable"
	// ReasonPoolClosed: the pools that admit the pod launch nothing at present.
	ReasonPoolClosed Reason = "PoolClosed"
	// ReasonUnsupported: the pod uses a scheduling rule that Karve does not support yet, or has more rules than Karve reads.
	ReasonUnsupported Reason = "UnsupportedConstraint"
	// ReasonLeftToKarpenter: a NodePool that Karpenter manages could also serve the pod.
	ReasonLeftToKarpenter Reason = "LeftToKarpenter"
	// ReasonRule: the places that a scheduling rule (spread, affinity, anti-affinity) allows for the pod are full or do not exist.
	ReasonRule Reason = "RuleUnsatisfiable"
	// ReasonVolumes: a volume of the pod does not exist or is not bound, and no machine would change that.
	ReasonVolumes Reason = "VolumesNotReady"
	// ReasonNextRound: there was no time to plan for the pod. The next round plans for it.
	ReasonNextRound Reason = "PlannedNextRound"
	// ReasonRequestsAboveOne: the pool refuses pods that request more than one replica.
	ReasonRequestsAboveOne Reason = "RequestsAboveOne"
	// ReasonSetAside: no plan that includes the pod keeps the rules, so the plan leaves the pod out. See solve.Contain.
	ReasonSetAside Reason = "SetAside"
	// ReasonPriority: the priority of the pod is too low for a machine to be launched for it, and no node has room.
	ReasonPriority Reason = "BelowPriorityCutoff"
	// ReasonGroup: the pod is of use only together with others, and there is no place for enough of them.
	ReasonGroup Reason = "GroupDoesNotFit"
	// ReasonLabels: a node that was launched for the pod has other labels than planned and does not admit it.
	ReasonLabels Reason = "NodeLabelsDiffer"
	// ReasonTaints: a node that was launched for the pod has a taint that its pool does not have, and does not admit the pod.
	ReasonTaints Reason = "NodeTainted"
)

// Refusal is a reason with a message that names the objects and says what to do.
type Refusal struct {
	Reason  Reason
	Message string
}

// NextRound is the refusal of pods for which there was no time.
var NextRound = Refusal{ReasonNextRound, "planned in the next round: there are more pods with rules of their own (affinity, anti-affinity, topology spread) than one plan has time for"}

// Launch is one machine to launch.
type Launch struct {
	// Offering is an index into Snapshot.Offerings.
	Offering int
	// Pods are the names of the pods that the machine is for, sorted. There is at least one.
	Pods []string
	// GPUs are the GPUs of the pods, as indices into the offering's GPUs. An entry is -1 for a pod that requests no device memory. GPUs is nil if no pod
	// requests any.
	GPUs []int
	// Alternatives are other offerings of the same pool that also hold the pods, the cheapest first. The NodeClaim names them in addition to Offering.
	// They are those required by the pool's MinValues, or else those that alternatives.Add finds. None of them draws from a stock.
	Alternatives []int
}

// Placement is a set of pods that are planned onto a node of the snapshot.
type Placement struct {
	// Node is an index into Snapshot.Nodes.
	Node int
	// Pods are the names of the pods, sorted. There is at least one.
	Pods []string
	// GPUs is as in [Launch], with indices into the node's GPUs.
	GPUs []int
}

// Unplaced is a pod that the plan does not place, and why.
type Unplaced struct {
	Pod string
	Refusal
}

// Plan is what to do about the pending pods of a snapshot. Every pod of the snapshot is in exactly one Launch, Placement or Unplaced.
type Plan struct {
	Placements []Placement
	Launches   []Launch
	Unplaced   []Unplaced
	// Held is the room that is kept for pods without a place because of [Group.Holds]. Those pods are in Unplaced.
	Held []Placement
	// Price is the sum of the prices of the launches, per hour.
	Price MicroUSD
	// Bound is a proven lower bound on the price of any plan that places the same pods. It is ≤ Price.
	Bound MicroUSD
}

// Paid returns the plan with the price that is paid per hour: without the surcharges of its launches, which its bound is less by too.
func Paid(s Snapshot, p Plan) Plan {
	for _, l := range p.Launches {
		p.Price -= s.Offerings[l.Offering].Surcharge
		p.Bound -= s.Offerings[l.Offering].Surcharge
	}
	p.Bound = max(0, p.Bound)
	return p
}
