package explain

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/planner"
)

// PodState is the state of a pod, as far as Karve is concerned.
type PodState string

// States of pods.
const (
	// PodWaits is for a pod that has no place, now or in the plan.
	PodWaits PodState = "Waiting"
	// PodPlanned is for a pod for which the next plan launches a machine.
	PodPlanned PodState = "Planned"
	// PodComing is for a pod whose machine is starting.
	PodComing PodState = "MachineStarting"
	// PodFits is for a pod that has room on a node that has started. The scheduler has to bind it.
	PodFits PodState = "HasRoom"
	// PodRuns is for a pod that is bound to a node.
	PodRuns PodState = "Running"
	// PodEnded is for a pod that no longer holds anything.
	PodEnded PodState = "Ended"
	// PodForeign is for a pod for which Karve does nothing.
	PodForeign PodState = "NotKarve"
)

// PodAnswer explains why a pod waits or is where it is. Fields that do not apply or are unknown are empty.
type PodAnswer struct {
	// Pod is namespace/name.
	Pod   string   `json:"pod"`
	State PodState `json:"state"`
	// Since is when the pod was created, or for a running pod when it was started.
	Since   *time.Time `json:"since,omitempty"`
	Wants   Wants      `json:"wants"`
	Summary string     `json:"summary"`
	// Reason and Message are those of the plan for a pod without a place.
	Reason  planner.Reason `json:"reason,omitempty"`
	Message string         `json:"message,omitempty"`
	// Help is a change that gives the pod a place, independent of the NodePool. Changes that depend on the NodePool are in Pools.
	Help *Help `json:"help,omitempty"`
	// Pools has an answer for each of Karve's NodePools, sorted by name, if the pod has no place.
	Pools []PoolAnswer `json:"nodePools,omitempty"`
	// Nodes counts the existing nodes that do not accept the pod.
	Nodes []NodeCount `json:"nodes,omitempty"`
	// Machine is the machine that is launched for the pod, is starting, or has room for it.
	Machine *Machine `json:"machine,omitempty"`
	Place   *Place   `json:"place,omitempty"`
	Rules   []Rule   `json:"rules,omitempty"`
	// Move reports whether consolidation would move a running pod.
	Move *Move `json:"move,omitempty"`
	// Controller says whether a controller works. It is nil if the caller has not asked.
	Controller *leader.Leader `json:"controller,omitempty"`
}

// Wants is a pod's request for GPUs.
type Wants struct {
	// Resource is the extended resource. Replicas is the requested amount.
	Resource string `json:"resource,omitempty"`
	Replicas int64  `json:"replicas,omitempty"`
	// GPUMemoryBytes is the device memory that the pod states.
	GPUMemoryBytes int64 `json:"gpuMemoryBytes,omitempty"`
}

// PoolAnswer explains why a NodePool launches nothing for a pod.
type PoolAnswer struct {
	NodePool string         `json:"nodePool"`
	Reason   planner.Reason `json:"reason"`
	Message  string         `json:"message"`
	// Help is a change that makes the plan place the pod. It is nil if none was found.
	Help *Help `json:"help,omitempty"`
}

// Help is a change that makes the plan place a pod.
type Help struct {
	// Change is the change in a few words, such as "limits nvidia.com/gpu: 21". It is the text of Changes, unless only time has to pass.
	Change string `json:"change"`
	// Changes are made together. All are to the same object.
	Changes []Change `json:"changes,omitempty"`
	// On is the object to change, such as "NodePool gpu-shared" or "pod". It is "" if only time has to pass.
	On string `json:"on,omitempty"`
	// At is when the change happens by itself.
	At *time.Time `json:"at,omitempty"`
	// Price is the hourly price of the machine that is then launched for the pod. It is 0 if a machine that exists or is launched anyway has room.
	Price planner.MicroUSD `json:"microUSDPerHour"`
}

// NodeCount counts the nodes that do not accept a pod for the same reason.
type NodeCount struct {
	Count int `json:"count"`
	// Why is the reason as part of a sentence about the nodes, such as "full".
	Why string `json:"why"`
	// Example is the node that comes closest to accepting the pod. Left is what it has left of the resources that it lacks.
	Example string `json:"example,omitempty"`
	Left    string `json:"left,omitempty"`
}

// Machine is the machine that a waiting pod gets.
type Machine struct {
	// Name is the name of the Node, or of the NodeClaim if there is no Node. It is "" if there is no NodeClaim yet.
	Name     string `json:"name,omitempty"`
	NodePool string `json:"nodePool"`
	// InstanceType, Zone and CapacityType are the planned ones until the cloud has launched the machine.
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	// Price is the price of the machine, and ListPrice that in the cloud's list.
	Price     planner.MicroUSD `json:"microUSDPerHour,omitempty"`
	ListPrice planner.MicroUSD `json:"listMicroUSDPerHour,omitempty"`
	State     lifecycle.State  `json:"state,omitempty"`
	// Since is when the NodeClaim was created. Until is the time limit of its present state.
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// Nominated reports whether the pod is nominated for the Node.
	Nominated bool `json:"nominated,omitempty"`
}

// Place is where a pod runs.
type Place struct {
	Node         string `json:"node"`
	NodeClaim    string `json:"nodeClaim,omitempty"`
	NodePool     string `json:"nodePool,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	// GPUs are the indices of the pod's GPUs. They are those that the agent reports, or else the one that plans assume; Reported says which. The list is
	// empty if neither is known.
	GPUs     []int `json:"gpus,omitempty"`
	Reported bool  `json:"gpusReported,omitempty"`
	// Replicas is how many of the node's NodeReplicas replicas the pod holds.
	Replicas     int64 `json:"replicas"`
	NodeReplicas int64 `json:"nodeReplicas,omitempty"`
	// Price is the part of the node's price that the pod's replicas pay for. NodePrice is that of the node, and NodeListPrice that in the cloud's list. All are
	// nil if unknown.
	Price         *planner.MicroUSD `json:"microUSDPerHour,omitempty"`
	NodePrice     *planner.MicroUSD `json:"nodeMicroUSDPerHour,omitempty"`
	NodeListPrice *planner.MicroUSD `json:"nodeListMicroUSDPerHour,omitempty"`
}

// Rule is a rule in the pod's spec that constrains where it may be.
type Rule struct {
	// Kind is the field, such as nodeSelector.
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Move reports whether consolidation moves a pod.
type Move struct {
	// Cost is the cost of restarting the pod. It is nil if the pod does not move.
	Cost *planner.MicroUSD `json:"costMicroUSD,omitempty"`
	// Saving is how much less the machines would cost without the pod's node. It is nil if that was not computed.
	Saving *planner.MicroUSD `json:"savingMicroUSDPerHour,omitempty"`
	// Kept is why the pod's node is not removed to save cost. It is "" if it is.
	Kept string `json:"kept,omitempty"`
}

// NodeAnswer explains why a node stays or goes, and when. Fields that do not apply or are unknown are empty.
type NodeAnswer struct {
	Node         string          `json:"node,omitempty"`
	NodeClaim    string          `json:"nodeClaim,omitempty"`
	NodePool     string          `json:"nodePool,omitempty"`
	State        lifecycle.State `json:"state,omitempty"`
	Summary      string          `json:"summary"`
	InstanceType string          `json:"instanceType,omitempty"`
	Zone         string          `json:"zone,omitempty"`
	CapacityType string          `json:"capacityType,omitempty"`
	// Price is the price of the machine, and ListPrice that in the cloud's list. Both are nil if the price is unknown.
	Price     *planner.MicroUSD `json:"microUSDPerHour,omitempty"`
	ListPrice *planner.MicroUSD `json:"listMicroUSDPerHour,omitempty"`
	// Replicas is how many replicas the node exposes. Held is how many of them pods hold.
	Replicas int64 `json:"replicas"`
	Held     int64 `json:"replicasHeld"`
	// Cordon names the GPUs that accept no new pods because somebody has cordoned them. It is "" if there are none.
	Cordon string `json:"gpuCordon,omitempty"`
	// Since is when the NodeClaim was created.
	Since *time.Time `json:"since,omitempty"`
	// Until is when the time limit of its state ends. Next is the event that ends the state before, and Late is what happens otherwise. They are empty for
	// a machine that runs pods.
	Until *time.Time `json:"until,omitempty"`
	Next  string     `json:"next,omitempty"`
	Late  string     `json:"late,omitempty"`
	// Goes is the earliest time at which the node is deleted, if nothing changes. It is nil if the node stays, or if the time is unknown.
	Goes *time.Time `json:"goes,omitempty"`
	// Causes are the reasons for which Karve deletes nodes, those that apply to this one first.
	Causes []Cause `json:"causes,omitempty"`
	// Controller says whether a controller works. It is nil if the caller has not asked.
	Controller *leader.Leader `json:"controller,omitempty"`
}

// Cause is a reason to delete a node.
type Cause struct {
	Reason karpv1.DisruptionReason `json:"reason"`
	// Applies reports whether the node has the reason now. If it is false, Message says why not.
	Applies bool   `json:"applies"`
	Message string `json:"message"`
	// Since is when the node began to have the reason. Due is when Karve acts on it.
	Since *time.Time `json:"since,omitempty"`
	Due   *time.Time `json:"due,omitempty"`
	// Kept is what keeps the node although it has the reason. RetryAt is when Karve tries again, if known. They are empty if nothing keeps it.
	Kept    string     `json:"kept,omitempty"`
	RetryAt *time.Time `json:"retryAt,omitempty"`
}
