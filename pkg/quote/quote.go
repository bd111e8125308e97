// Package quote says what a plan for a cluster would launch and cost, beside what else the same pods could cost. It is pure: a cluster
// in, values and text out.
package quote

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

// Quote is a plan in words of the cluster. Its JSON is for programs to read; prices are in micro-dollars an hour.
type Quote struct {
	// Claims are the machines to launch.
	Claims []Claim `json:"claims"`
	// Placements are what finds room on machines that are there or on their way.
	Placements []Placement `json:"placements"`
	// Unplaced are the pods that have no place, and why.
	Unplaced []Unplaced `json:"unplaced"`
	// Price is the sum of the claims' prices, Bound what no plan for the same pods can go below.
	Price planner.MicroUSD `json:"microUSDPerHour"`
	Bound planner.MicroUSD `json:"boundMicroUSDPerHour"`
	// Karpenter is what the same pods cost when Karpenter packs them, told of the replicas as a NodeOverlay can; nil when that is not known.
	// KarpenterUnplaced is how many of them have no place then. Neither this nor WholeGPUs looks at the limits of pools: what is asked is what it
	// would cost, not whether it may.
	Karpenter         *planner.MicroUSD `json:"karpenterMicroUSDPerHour,omitempty"`
	KarpenterUnplaced int               `json:"karpenterUnplacedPods,omitempty"`
	// WholeGPUs is what the same pods cost when each of their replicas is a whole GPU, WholeGPUsUnplaced how many of them have no place then.
	WholeGPUs         planner.MicroUSD `json:"wholeGPUsMicroUSDPerHour"`
	WholeGPUsUnplaced int              `json:"wholeGPUsUnplacedPods,omitempty"`
	// Headroom is what is kept free besides; nil where nothing is. It is in no other price.
	Headroom *Headroom `json:"headroom,omitempty"`

	// pods are what else is known of the pods, by name, and of those that headroom is for; waiting is how many there are that wait.
	pods    map[string]pod
	waiting int
}

// Claim is a machine to launch.
type Claim struct {
	NodePool string `json:"nodePool"`
	// InstanceTypes and Zones are what the claim allows, the cheapest first.
	InstanceTypes []string `json:"instanceTypes"`
	CapacityType  string   `json:"capacityType"`
	Zones         []string `json:"zones"`
	Pods          []string `json:"pods"`
	// ReplicasPerGPU is into how many replicas each GPU is shared.
	ReplicasPerGPU int64 `json:"replicasPerGPU"`
	// Price is that of the first instance type.
	Price planner.MicroUSD `json:"microUSDPerHour"`

	// more says that these are more replicas than the class says at least.
	more bool
}

// Placement is the pods that find room on a node.
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

// pod is what is known of a pod beside its place.
type pod struct {
	// workload is namespace/name of what made it; the pod's own when it was made by hand.
	workload string
	// gpu is the GPU that it is planned on, -1 when any will do.
	gpu int
}

// Search makes the search of one plan. It is asked once for each plan, so that a budget of time is each one's own.
type Search func() solve.Solver

// Of plans for a cluster.
func Of(c *snapshot.Cluster, search Search) (Quote, error) {
	view := snapshot.Build(c)
	kept, plan, err := planFor(view.Snapshot, search)
	if err != nil {
		return Quote{}, err
	}
	view.Snapshot = kept
	q := Quote{
		Claims: []Claim{}, Placements: []Placement{}, Unplaced: []Unplaced{}, // Lists of JSON even where they are empty.
		Price: plan.Price, Bound: plan.Bound, pods: map[string]pod{}, waiting: len(view.Pods),
	}
	for name, p := range view.Pods {
		q.pods[name] = pod{workload: workloadOf(p), gpu: -1}
	}
	for _, launch := range plan.Launches {
		q.Claims = append(q.Claims, claimOf(&view, launch))
		q.assign(launch.Pods, launch.GPUs)
	}
	for _, placement := range plan.Placements {
		q.Placements = append(q.Placements, Placement{Node: view.Nodes[placement.Node].Name, Pods: placement.Pods})
		q.assign(placement.Pods, placement.GPUs)
	}
	for _, u := range plan.Unplaced {
		q.Unplaced = append(q.Unplaced, Unplaced{Pod: u.Pod, Reason: u.Reason, Message: u.Message})
	}
	slices.SortStableFunc(q.Claims, compareClaims)
	slices.SortStableFunc(q.Placements, func(a, b Placement) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortStableFunc(q.Unplaced, func(a, b Unplaced) int { return cmp.Compare(a.Pod, b.Pod) })

	same := samePods(view.Snapshot, plan)
	// The packing does not know all rules of pods; what breaks one is not what Karpenter would do.
	if karpenter := firstfit.Plan(same); check.Plan(same, karpenter) == nil {
		q.Karpenter, q.KarpenterUnplaced = &karpenter.Price, len(karpenter.Unplaced)
	}
	_, whole, err := planFor(samePods(snapshot.Build(withReplicas(c, 1, true)).Snapshot, plan), search)
	if err != nil {
		return Quote{}, err
	}
	q.WholeGPUs, q.WholeGPUsUnplaced = whole.Price, len(whole.Unplaced)
	q.Headroom, err = q.headroom(&view, plan, search)
	return q, err
}

// planFor plans, and proves that the plan keeps every rule: what is printed is bought. The plan is for the snapshot that it returns, in which what cannot be planned
// for is blocked.
func planFor(s planner.Snapshot, search Search) (planner.Snapshot, planner.Plan, error) {
	return contain(s, nil, func(s planner.Snapshot) planner.Plan { return search().Plan(s) })
}

func contain(s planner.Snapshot, first *planner.Plan, build func(planner.Snapshot) planner.Plan) (planner.Snapshot, planner.Plan, error) {
	s, plan, _, err := solve.Contain(s, first, build, func() bool { return true })
	if err != nil {
		return s, plan, fmt.Errorf("the plan breaks a rule, which is a fault of Karve's: %w", err)
	}
	return s, plan, nil
}

func claimOf(view *snapshot.View, launch planner.Launch) Claim {
	s := view.Snapshot
	o := s.Offerings[launch.Offering]
	_, replicas := view.Promised(launch)
	claim := Claim{
		NodePool: s.Pools[o.Pool].Name, InstanceTypes: []string{o.InstanceType}, CapacityType: o.CapacityType, Zones: []string{o.Zone},
		Pods: launch.Pods, ReplicasPerGPU: replicas, Price: o.Price,
		more: replicas > view.Pools[o.Pool].Class.Spec.Sharing.ReplicasFor(view.Offerings[launch.Offering].Type.GPU.Name),
	}
	for _, i := range launch.Alternatives {
		if other := s.Offerings[i]; !slices.Contains(claim.InstanceTypes, other.InstanceType) {
			claim.InstanceTypes = append(claim.InstanceTypes, other.InstanceType)
		}
		if other := s.Offerings[i]; !slices.Contains(claim.Zones, other.Zone) {
			claim.Zones = append(claim.Zones, other.Zone)
		}
	}
	return claim
}

// compareClaims orders claims by pool, the dearest first.
func compareClaims(a, b Claim) int {
	return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), cmp.Compare(b.Price, a.Price), slices.Compare(a.InstanceTypes, b.InstanceTypes),
		cmp.Compare(a.CapacityType, b.CapacityType), slices.Compare(a.Zones, b.Zones), cmp.Compare(a.ReplicasPerGPU, b.ReplicasPerGPU), slices.Compare(a.Pods, b.Pods))
}

// assign notes the GPUs of pods; gpus is nil when none of them states device memory.
func (q *Quote) assign(pods []string, gpus []int) {
	for i, gpu := range gpus {
		p := q.pods[pods[i]]
		p.gpu = gpu
		q.pods[pods[i]] = p
	}
}

// withReplicas is the cluster with so many replicas to each shared GPU. Overrides for GPUs of some name stay, unless all are meant.
func withReplicas(c *snapshot.Cluster, replicas int32, all bool) *snapshot.Cluster {
	changed := *c
	changed.GPUNodeClasses = slices.Clone(c.GPUNodeClasses)
	for i := range changed.GPUNodeClasses {
		sharing := &changed.GPUNodeClasses[i].Spec.Sharing
		if !sharing.Shared() {
			continue
		}
		sharing.Replicas, sharing.MaxReplicas = &replicas, nil
		if all {
			sharing.Overrides = nil
		}
	}
	return &changed
}

// samePods is the snapshot with those pods that have a place in the plan, and pools without limits: what they would cost is asked, not whether
// they may.
func samePods(s planner.Snapshot, plan planner.Plan) planner.Snapshot {
	unplaced := map[string]bool{}
	for _, u := range plan.Unplaced {
		unplaced[u.Pod] = true
	}
	s.Classes = slices.Clone(s.Classes)
	for i := range s.Classes {
		s.Classes[i].Pods = slices.DeleteFunc(slices.Clone(s.Classes[i].Pods), func(pod string) bool { return unplaced[pod] })
	}
	s.Pools = slices.Clone(s.Pools)
	for i := range s.Pools {
		s.Pools[i].Remaining, s.Pools[i].Limited = unlimited, nil
	}
	return s
}

var unlimited = planner.Physical{
	MilliCPU: planner.Unlimited, MemoryBytes: planner.Unlimited, GPUs: planner.Unlimited, Replicas: planner.Unlimited, Nodes: planner.Unlimited,
}
