// Package quote describes what the plan for a cluster launches and costs, and compares it with other prices for the same pods. It does no I/O except for
// writing text.
package quote

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/fleet/waste"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// Quote describes a plan with the names of the cluster. Programs can read it as JSON. Prices are in micro-dollars per hour.
type Quote struct {
	// Claims are the machines to launch.
	Claims []Claim `json:"claims"`
	// Placements are the pods that fit on machines that exist or are being launched.
	Placements []Placement `json:"placements"`
	// Unplaced are the pods without a place, with reasons. Those that Karpenter serves (LeftToKarpenter) have a place there.
	Unplaced []Unplaced `json:"unplaced"`
	// Unserved are the resources that nothing serves. The pods that request them are not part of the plan.
	Unserved []Unserved `json:"unserved,omitempty"`
	// Refused are pods that the API server would not create. Unplanned are objects whose pods are unknown. They are not part of the plan.
	Refused   []Refused   `json:"refused,omitempty"`
	Unplanned []Unplanned `json:"unplanned,omitempty"`
	// Price is the sum of the prices of the claims. ListPrice is the sum of their prices in the cloud's list. Bound is a lower bound for any plan for the same pods.
	Price     planner.MicroUSD `json:"microUSDPerHour"`
	ListPrice planner.MicroUSD `json:"listMicroUSDPerHour"`
	Bound     planner.MicroUSD `json:"boundMicroUSDPerHour"`
	// PricesWork reports whether pods state their throughput, so that the plan minimizes the price of their work. Bound is then for plans on equally fast machines, and
	// there is no comparison with Karpenter, which does not know about work.
	PricesWork bool `json:"pricesWork,omitempty"`
	// Karpenter is the price if Karpenter packs the same pods, with the replicas configured as in a NodeOverlay. It is nil if unknown. KarpenterUnplaced
	// is the number of pods without a place in that case. Karpenter and WholeGPUs ignore the limits of pools, because they are prices for comparison.
	Karpenter         *planner.MicroUSD `json:"karpenterMicroUSDPerHour,omitempty"`
	KarpenterUnplaced int               `json:"karpenterUnplacedPods,omitempty"`
	// WholeGPUs is the price if each replica is a whole GPU, and WholeGPUsUnplaced is the number of pods without a place in that case.
	WholeGPUs         planner.MicroUSD `json:"wholeGPUsMicroUSDPerHour"`
	WholeGPUsUnplaced int              `json:"wholeGPUsUnplacedPods,omitempty"`
	// Headroom is the capacity that is kept free in addition. It is nil if there is none. No other price includes it.
	Headroom *Headroom `json:"headroom,omitempty"`
	// Steps are the steps to a cheaper layout of the nodes that exist, in the order in which the waste of each GPUNodeClass pays for them.
	Steps []waste.Step `json:"consolidation,omitempty"`
	// Controller says whether a controller works. It is nil if the caller has not asked, as for manifests.
	Controller *leader.Leader `json:"controller,omitempty"`

	// pods holds details of the pods by name, including the placeholders of the headroom. waiting is the number of pending pods. now is the time of the
	// plan.
	pods    map[string]pod
	waiting int
	now     time.Time
}

// Claim is a machine to launch.
type Claim struct {
	NodePool string `json:"nodePool"`
	// InstanceTypes and Zones are what the NodeClaim allows, the cheapest first.
	InstanceTypes []string `json:"instanceTypes"`
	CapacityType  string   `json:"capacityType"`
	// Reservation is the ID of the reservation whose slot the machine takes, or "" if it takes none.
	Reservation    string   `json:"reservation,omitempty"`
	Zones          []string `json:"zones"`
	Pods           []string `json:"pods"`
	ReplicasPerGPU int64    `json:"replicasPerGPU"`
	// MIGLayout names the MIG instances of its GPUs, for example "1g.5gb" or "3x1g.5gb_2x2g.10gb". It is "" if they are not divided.
	MIGLayout string `json:"migLayout,omitempty"`
	// Price is the price of the first instance type, and ListPrice its price in the cloud's list.
	Price     planner.MicroUSD `json:"microUSDPerHour"`
	ListPrice planner.MicroUSD `json:"listMicroUSDPerHour"`

	// more reports whether ReplicasPerGPU is larger than the minimum of the class.
	more bool
}

// Placement holds the pods that fit on a node.
type Placement struct {
	Node string   `json:"node"`
	Pods []string `json:"pods"`
}

// Unplaced is a pod without a place.
type Unplaced struct {
	Pod     string         `json:"pod"`
	Reason  planner.Reason `json:"reason"`
	Message string         `json:"message"`
}

// Refused are pods of an object that the API server would not create.
type Refused struct {
	// Object is the kind, namespace and name of the object that would create them.
	Object  string   `json:"object"`
	Pods    []string `json:"pods"`
	Message string   `json:"message"`
}

// Unplanned is an object whose pods are unknown.
type Unplanned struct {
	Object  string `json:"object"`
	Message string `json:"message"`
}

func (q *Quote) complete() bool {
	unplaced, _ := q.split()
	return len(unplaced)+len(q.Unserved)+len(q.Refused)+len(q.Unplanned) == 0
}

// Total returns the price of all machines to launch, including those for headroom.
func (q *Quote) Total() planner.MicroUSD {
	if q.Headroom == nil {
		return q.Price
	}
	return q.Price + q.Headroom.Price
}

// Homeless returns the sorted names of the pods without a place, including those that request an unserved resource and those that would not be created.
func (q *Quote) Homeless() []string {
	var pods []string
	unplaced, _ := q.split()
	for _, u := range unplaced {
		pods = append(pods, u.Pod)
	}
	for _, u := range q.Unserved {
		pods = append(pods, u.Pods...)
	}
	for _, r := range q.Refused {
		pods = append(pods, r.Pods...)
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// split returns the pods without a place, and those that are left to Karpenter.
func (q *Quote) split() (unplaced, left []Unplaced) {
	for _, u := range q.Unplaced {
		if u.Reason == planner.ReasonLeftToKarpenter {
			left = append(left, u)
		} else {
			unplaced = append(unplaced, u)
		}
	}
	return unplaced, left
}

// pod holds details of a pod other than its place.
type pod struct {
	// workload is the namespace/name of the workload that created the pod. It is that of the pod if no workload did.
	workload string
	// gpu is the index of the GPU in the plan. It is -1 if the pod may use any GPU.
	gpu int
}

func workloadOf(p *corev1.Pod) string {
	_, name := facts.OwnerOf(p)
	return p.Namespace + "/" + name
}

// maxWorkloads is the number of workloads that a line names.
const maxWorkloads = 4

// workloads returns the names of the workloads of the pods, those with the most pods first, with the number of pods if it is more than one.
func (q *Quote) workloads(pods []string) string {
	counts := map[string]int{}
	for _, name := range pods {
		counts[q.pods[name].workload]++
	}
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
	for i, name := range names {
		if counts[name] > 1 {
			names[i] += fmt.Sprintf(" (%d)", counts[name])
		}
	}
	return words.Named(names, maxWorkloads)
}

// compareClaims orders claims by pool, and then by price with the most expensive first.
func compareClaims(a, b Claim) int {
	return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), cmp.Compare(b.Price, a.Price), slices.Compare(a.InstanceTypes, b.InstanceTypes),
		cmp.Compare(a.CapacityType, b.CapacityType), cmp.Compare(a.Reservation, b.Reservation), slices.Compare(a.Zones, b.Zones), cmp.Compare(a.ReplicasPerGPU, b.ReplicasPerGPU), cmp.Compare(a.MIGLayout, b.MIGLayout), slices.Compare(a.Pods, b.Pods))
}
