package quote

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/waste"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

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

// assign records the GPUs of pods. gpus is nil if none of the pods requests device memory.
func (q *Quote) assign(pods []string, gpus []int) {
	for i, gpu := range gpus {
		p := q.pods[pods[i]]
		p.gpu = gpu
		q.pods[pods[i]] = p
	}
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
