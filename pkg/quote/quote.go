// Package quote describes what the plan for a cluster launches and costs, and compares it with other prices for the same pods. It does no I/O except for
// writing text.
package quote

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/waste"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
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

// Search returns a solver. It is called for each plan, so that every plan has the whole time budget.
type Search func() solve.Solver

// Of plans for a cluster and returns the quote.
func Of(c *facts.Cluster, search Search) (Quote, error) {
	view := snapshot.Build(c)
	kept, plan, err := planFor(view.Snapshot, nil, search)
	if err != nil {
		return Quote{}, err
	}
	view.Snapshot = kept
	paid := planner.Paid(kept, plan)
	q := Quote{
		Claims: []Claim{}, Placements: []Placement{}, Unplaced: []Unplaced{}, // They are empty lists in JSON, not null.
		Unserved: unservedOf(c), Price: paid.Price, Bound: paid.Bound, pods: map[string]pod{}, waiting: len(view.Pods), now: c.Now,
	}
	for i := range c.GPUNodeClasses {
		q.Steps = append(q.Steps, waste.Steps(&c.GPUNodeClasses[i], c.Now)...)
	}
	for name, p := range view.Pods {
		q.pods[name] = pod{workload: workloadOf(p), gpu: -1}
	}
	q.places(&view, plan)

	q.PricesWork = view.PricesWork()
	same := samePods(view.Snapshot, plan)
	// The packing does not know all rules for pods. If it breaks one, it differs from what Karpenter would do, as it does if pods state their throughput.
	if karpenter := firstfit.Plan(same); !q.PricesWork && check.Plan(same, karpenter) == nil {
		paid := planner.Paid(same, karpenter)
		q.Karpenter, q.KarpenterUnplaced = &paid.Price, len(karpenter.Unplaced)
	}
	wholeGPUs, _, err := withStrategy(c, v1alpha1.StrategyNone, 0)
	if err != nil {
		return Quote{}, err
	}
	alone, whole, err := planFor(samePods(snapshot.Build(wholeGPUs).Snapshot, plan), nil, search)
	if err != nil {
		return Quote{}, err
	}
	q.WholeGPUs, q.WholeGPUsUnplaced = planner.Paid(alone, whole).Price, len(whole.Unplaced)
	q.Headroom, err = q.headroom(&view, plan, search)
	return q, err
}

func (q *Quote) places(view *snapshot.View, plan planner.Plan) {
	for _, launch := range plan.Launches {
		claim := claimOf(view, launch)
		q.Claims, q.ListPrice = append(q.Claims, claim), q.ListPrice+claim.ListPrice
		if !view.Offerings[launch.Offering].Anywhere() {
			q.assign(launch.Pods, launch.GPUs)
		}
	}
	for _, placement := range plan.Placements {
		q.Placements = append(q.Placements, Placement{Node: view.Nodes[placement.Node].Name, Pods: placement.Pods})
		if !view.AnyGPU(placement.Node) {
			q.assign(placement.Pods, placement.GPUs)
		}
	}
	for _, u := range plan.Unplaced {
		q.Unplaced = append(q.Unplaced, Unplaced{Pod: u.Pod, Reason: u.Reason, Message: u.Message})
	}
	for p, pool := range view.LeftToKarpenter() {
		if memoryalias.In(&p.Spec) { // Karpenter knows no machine with device memory, so it launches none.
			continue
		}
		q.waiting++
		q.pods[facts.PodName(p)] = pod{workload: workloadOf(p), gpu: -1}
		q.Unplaced = append(q.Unplaced, Unplaced{facts.PodName(p), planner.ReasonLeftToKarpenter, fmt.Sprintf("NodePool %s, which Karpenter serves, takes it, and no NodePool of Karve's does", pool)})
	}
	slices.SortStableFunc(q.Claims, compareClaims)
	slices.SortStableFunc(q.Placements, func(a, b Placement) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortStableFunc(q.Unplaced, func(a, b Unplaced) int { return cmp.Compare(a.Pod, b.Pod) })
}

// planFor plans and checks that the plan keeps every rule, because users buy what is printed. It also returns the snapshot of the plan, in which pods
// that cannot be planned are blocked. first is a plan that was already made, and may be nil.
func planFor(s planner.Snapshot, first *planner.Plan, search Search) (planner.Snapshot, planner.Plan, error) {
	kept, plan, outcome := checked.Search{Solver: search}.Plan(s, first)
	if outcome.Err != nil {
		return kept, plan, fmt.Errorf("the plan breaks a rule, which is a bug in Karve: %w", outcome.Err)
	}
	return kept, plan, nil
}

func claimOf(view *snapshot.View, launch planner.Launch) Claim {
	s := view.Snapshot
	o := s.Offerings[launch.Offering]
	_, replicas := view.Promised(launch)
	claim := Claim{
		NodePool: s.Pools[o.Pool].Name, InstanceTypes: []string{o.InstanceType}, CapacityType: o.CapacityType, Reservation: view.Offerings[launch.Offering].Reservation, Zones: []string{o.Zone},
		Pods: launch.Pods, ReplicasPerGPU: replicas, Price: o.Paid(), ListPrice: o.ListPrice, MIGLayout: view.Offerings[launch.Offering].Share.MIG.Key(),
		more: replicas > view.Offerings[launch.Offering].Share.Least,
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

// compareClaims orders claims by pool, and then by price with the most expensive first.
func compareClaims(a, b Claim) int {
	return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), cmp.Compare(b.Price, a.Price), slices.Compare(a.InstanceTypes, b.InstanceTypes),
		cmp.Compare(a.CapacityType, b.CapacityType), cmp.Compare(a.Reservation, b.Reservation), slices.Compare(a.Zones, b.Zones), cmp.Compare(a.ReplicasPerGPU, b.ReplicasPerGPU), cmp.Compare(a.MIGLayout, b.MIGLayout), slices.Compare(a.Pods, b.Pods))
}

// assign records the GPUs of pods. gpus is nil if none of the pods requests device memory.
func (q *Quote) assign(pods []string, gpus []int) {
	for i, gpu := range gpus {
		p := q.pods[pods[i]]
		p.gpu = gpu
		q.pods[pods[i]] = p
	}
}

// withReplicas returns the cluster with the given number of replicas on each GPU or MIG instance that has replicas.
func withReplicas(c *facts.Cluster, replicas int32) *facts.Cluster {
	changed := *c
	changed.GPUNodeClasses = slices.Clone(c.GPUNodeClasses)
	for i := range changed.GPUNodeClasses {
		if sharing := &changed.GPUNodeClasses[i].Spec.Sharing; hasReplicas(sharing) {
			sharing.Replicas, sharing.MaxReplicas = &replicas, nil
		}
	}
	return &changed
}

// hasReplicas reports whether GPUs are shared by a number of replicas. Slots of memory have sizes instead.
func hasReplicas(s *v1alpha1.Sharing) bool {
	return s.Shared() && s.Strategy != v1alpha1.StrategyMemorySlots
}

// samePods returns the snapshot with only the pods that have a place in the plan and without limits of pools, to compare prices.
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
		s.Pools[i].Remaining, s.Pools[i].Limited = planner.NoLimits, nil
	}
	return s
}
