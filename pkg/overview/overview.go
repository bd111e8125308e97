// Package overview describes the shared GPUs of a live cluster: pools, nodes, GPUs, the pods that hold replicas, and prices. Build makes an Overview
// from objects that were read; the package has no client, no clock and no log. kubectl karve and its web page show overviews, and the JSON tags are the
// output of kubectl karve with -o json.
//
// An unknown value is nil, and never 0.
package overview

import (
	"time"

	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
)

// Overview is the state of the cluster at one moment. Its lists are sorted by name.
type Overview struct {
	AsOf  time.Time `json:"asOf"`
	Pools []Pool    `json:"pools"`
	Nodes []Node    `json:"nodes"`
	// Pods are the pods that hold replicas. Waiting are those that need some and are bound to no node, the oldest first.
	Pods    []Pod     `json:"pods"`
	Waiting []Waiting `json:"waiting"`
	Totals  Totals    `json:"totals"`
	// Reservations are the reservations that node classes select, by ID. There are none if their slots are unknown to the caller.
	Reservations []Reservation `json:"reservations,omitempty"`
	// Controller says whether a controller works. It is nil if the caller has not asked. Build does not set it.
	Controller *leader.Leader `json:"controller,omitempty"`
}

// Totals are the sums of nodes.
type Totals struct {
	Nodes        int   `json:"nodes"`
	GPUs         int64 `json:"gpus"`
	Replicas     int64 `json:"replicas"`
	ReplicasHeld int64 `json:"replicasHeld"`
	// MicroUSDPerHour is the price of the nodes. IdleMicroUSDPerHour is the part of it that no pod pays for. The price of UnpricedNodes nodes is unknown
	// and not in the sums. ListMicroUSDPerHour is the price of the nodes in the cloud's list.
	MicroUSDPerHour     int64 `json:"microUSDPerHour"`
	ListMicroUSDPerHour int64 `json:"listMicroUSDPerHour"`
	IdleMicroUSDPerHour int64 `json:"idleMicroUSDPerHour"`
	UnpricedNodes       int   `json:"unpricedNodes,omitempty"`
	// BoundMicroUSDPerHour is a proven lower bound on the price of nodes for the same pods. It is nil if none was computed.
	BoundMicroUSDPerHour *int64 `json:"boundMicroUSDPerHour,omitempty"`
}

// Reservation is a capacity reservation or a capacity block.
type Reservation struct {
	ID           string `json:"id"`
	InstanceType string `json:"instanceType"`
	Zone         string `json:"zone"`
	// Used are the machines of Karve in it, Free those that could be launched, and Others those of others.
	Used   int64 `json:"used"`
	Free   int64 `json:"free"`
	Others int64 `json:"others"`
	// MicroUSDPerHour is the list price of a machine, or nil if unknown. FreeMicroUSDPerHour is that of all free ones, which are paid and hold no pods.
	MicroUSDPerHour     *int64 `json:"microUSDPerHour,omitempty"`
	FreeMicroUSDPerHour *int64 `json:"freeMicroUSDPerHour,omitempty"`
	// Holds is what the free ones would hold, for each NodePool that may take them.
	Holds []Room `json:"holds,omitempty"`
	// End is when the reservation ends, and Leaves when its machines are deleted before. They are zero if that is open, or if the machines go on.
	End    time.Time `json:"end,omitzero"`
	Leaves time.Time `json:"leaves,omitzero"`
	// AsOf is when the free ones were counted, or zero if they are unknown.
	AsOf time.Time `json:"asOf,omitzero"`
}

// Room is what machines would hold if a NodePool launched them.
type Room struct {
	NodePool string `json:"nodePool"`
	// Resource is what pods would request, and Replicas how many there would be.
	Resource string `json:"resource"`
	Replicas int64  `json:"replicas"`
}

// Pool is one of Karve's NodePools.
type Pool struct {
	Name         string `json:"name"`
	GPUNodeClass string `json:"gpuNodeClass"`
	// Resource is the resource that pods of the pool request. It is "" if the GPUNodeClass does not exist.
	Resource string `json:"resource,omitempty"`
	// Problem is why the pool is not Ready. It is "" if it is.
	Problem string `json:"problem,omitempty"`
	// Totals has no bound.
	Totals Totals `json:"totals"`
}

// Node is a machine with shared GPUs, from the creation of its NodeClaim on.
type Node struct {
	// Name is the name of the Node, or that of the NodeClaim until the machine has registered.
	Name string `json:"name"`
	// NodeClaim is "" for a node that Karve did not launch.
	NodeClaim string `json:"nodeClaim,omitempty"`
	// Pool is the NodePool, or "" if the node has none.
	Pool         string `json:"nodePool,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	// Address is the internal IP address of the Node, or "" if it has none yet.
	Address string `json:"address,omitempty"`
	// Resource is the resource that the node exposes. A node with slots of memory has several, separated by commas.
	Resource string    `json:"resource,omitempty"`
	Created  time.Time `json:"created"`
	// State is the state of the machine as in docs/machines.md. Nodes that Karve did not launch are Started.
	State lifecycle.State `json:"state"`
	// Message describes the state, such as "idle 3m, deleted in 2m", and Severity defines how to show it.
	Message  string   `json:"message"`
	Severity Severity `json:"severity"`
	// IdleSince is when Karve first saw the node without pods. LeavesAt is when it may leave because of that. They are nil if the node is not idle, or
	// never leaves.
	IdleSince *time.Time `json:"idleSince,omitempty"`
	LeavesAt  *time.Time `json:"leavesAt,omitempty"`
	// Replicas is the number of replicas that the Node exposes, or will expose once it has started. ReplicasHeld is the total request of its pods.
	Replicas     int64 `json:"replicas"`
	ReplicasHeld int64 `json:"replicasHeld"`
	// MemoryMiB is the device memory of all GPUs, or nil if unknown. StatedMiB is the device memory that the pods request or have as slots, in MiB.
	MemoryMiB *int64 `json:"memoryMiB,omitempty"`
	StatedMiB int64  `json:"statedMiB"`
	// MicroUSDPerHour is the price of the node, and ListMicroUSDPerHour that in the cloud's list. Both are nil if the price is unknown.
	// IdleMicroUSDPerHour is the part that no pod pays for.
	MicroUSDPerHour     *int64 `json:"microUSDPerHour,omitempty"`
	ListMicroUSDPerHour *int64 `json:"listMicroUSDPerHour,omitempty"`
	IdleMicroUSDPerHour *int64 `json:"idleMicroUSDPerHour,omitempty"`
	Agent               Agent  `json:"agent"`
	// GPUs are the GPUs by index. Without a report of the agent, there are as many as the node should have, with nothing but an index.
	GPUs []GPU `json:"gpus"`
}

// Severity defines how to show a state.
type Severity string

const (
	// Good is a node that accepts pods.
	Good Severity = "good"
	// Busy is a node that is starting or leaving.
	Busy Severity = "busy"
	// Idle is a node without pods.
	Idle Severity = "idle"
	// Bad is a node that needs attention.
	Bad Severity = "bad"
)

// Agent is the state of the agent's report (karve.sh/gpu-holders).
type Agent struct {
	// Report is Missing, Fresh, Stale or Invalid.
	Report ReportState `json:"report"`
	// AsOf is when the agent last looked.
	AsOf *time.Time `json:"asOf,omitempty"`
	// Truncated reports that the node has too many pods for the report to name them.
	Truncated bool `json:"truncated,omitempty"`
}

// ReportState is the state of an agent's report.
type ReportState string

// States of a report.
const (
	// Missing means that no agent has reported: there is none, it is an old one, or it has not started.
	Missing ReportState = "Missing"
	Fresh   ReportState = "Fresh"
	// Stale means that the report is older than nodecontract.HoldersFresh, so it may be out of date.
	Stale ReportState = "Stale"
	// Invalid means that the report cannot be read.
	Invalid ReportState = "Invalid"
)

// GPU is a physical GPU, or a MIG instance of one.
type GPU struct {
	Index int `json:"index"`
	// Instance is the index of the MIG instance on the GPU. Profile is its profile. They are nil and empty for an undivided GPU.
	Instance *int   `json:"instance,omitempty"`
	Profile  string `json:"profile,omitempty"`
	// The fields below come from the agent. They are empty or nil without its report.
	UUID      string `json:"uuid,omitempty"`
	Product   string `json:"product,omitempty"`
	MemoryMiB *int64 `json:"memoryMiB,omitempty"`
	// Healthy is false if the agent has taken the GPU out of service.
	Healthy *bool `json:"healthy,omitempty"`
	// Cordoned is true if the GPU accepts no new pods because somebody has cordoned it (karve.sh/gpu-cordon).
	Cordoned bool   `json:"cordoned,omitempty"`
	Replicas *int64 `json:"replicas,omitempty"`
	Held     *int64 `json:"replicasHeld,omitempty"`
	// Slots are the slots of memory of the GPU, the smallest first. It is nil if the GPU is not divided into slots.
	Slots []Slots `json:"slots,omitempty"`
	// StatedMiB is the memory that the pods on the GPU request or have as slots. It is nil if the agent does not name them.
	StatedMiB *int64 `json:"statedMiB,omitempty"`
	// Holders are the containers that hold replicas. It is nil if the agent does not name them.
	Holders []Holder `json:"holders,omitempty"`
	// UsedMiB and SMPercent are from the agent's metrics. They are nil if the metrics were not read.
	UsedMiB   *int64   `json:"usedMiB,omitempty"`
	SMPercent *float64 `json:"smPercent,omitempty"`
}

// Name returns nvidia-smi's name of the GPU or the MIG instance, for example "0" and "0:3".
func (g *GPU) Name() string {
	return nodecontract.HeldGPU{Index: g.Index, Instance: g.Instance}.Name()
}

// Slots are the slots of one size on a GPU.
type Slots struct {
	// MiB is the memory of each slot.
	MiB int64 `json:"mib"`
	// Held is how many slots pods hold. Free is how many others there are.
	Held int64 `json:"held"`
	Free int64 `json:"free"`
}

// Holder is a container that holds replicas of a GPU.
type Holder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// Replicas are the numbers of the replicas. It is empty for an unshared GPU, which has one holder, and for slots.
	Replicas []int `json:"replicas,omitempty"`
	// Slots are the slots of memory, by size and number, for example "4gb-0".
	Slots []string `json:"slots,omitempty"`
	// StatedMiB is the memory that the pod requests. It is nil if it requests none.
	StatedMiB *int64 `json:"statedMiB,omitempty"`
}

// Pod is a pod that holds replicas.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	Pool      string `json:"nodePool,omitempty"`
	Replicas  int64  `json:"replicas"`
	// GPUs are the indices of the GPUs of the node on which the pod holds replicas. It is nil if the agent does not report them.
	GPUs []int `json:"gpus,omitempty"`
	// StatedMiB is the device memory that the pod requests or has as slots, or nil if there is none.
	StatedMiB *int64 `json:"statedMiB,omitempty"`
	// StatedProblem is what is wrong with the device memory that the pod states, or "".
	StatedProblem string `json:"statedProblem,omitempty"`
	// MicroUSDPerHour is the pod's part of the price of its node: see package bill.
	MicroUSDPerHour *int64 `json:"microUSDPerHour,omitempty"`
	// Started is when the kubelet started the pod.
	Started time.Time `json:"started"`
	// UnusedSeconds is how long the pod has not used its GPUs, or nil if the agent does not report it as unused.
	UnusedSeconds *int64 `json:"unusedSeconds,omitempty"`
	// UsedMiB and SMPercent are from the agent's metrics. They are nil if the metrics were not read or do not have the pod.
	UsedMiB   *int64   `json:"usedMiB,omitempty"`
	SMPercent *float64 `json:"smPercent,omitempty"`
}

// Waiting is a pod that requests GPUs and is bound to no node.
type Waiting struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Since     time.Time `json:"since"`
	Resource  string    `json:"resource"`
	Replicas  int64     `json:"replicas"`
	// StatedMiB is the device memory that the pod requests, or nil if it requests none.
	StatedMiB *int64 `json:"statedMiB,omitempty"`
	Nominated string `json:"nominatedNode,omitempty"`
	// Reason is why the pod has no node: that of its condition PodScheduled, such as Unschedulable, or that of a plan if the caller has made one. It is ""
	// for a pod that no scheduler has tried.
	Reason string `json:"reason,omitempty"`
}
