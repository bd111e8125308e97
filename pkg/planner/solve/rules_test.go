package solve_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

func TestStoppedPlanWithRulesPlacesEveryPod(t *testing.T) {
	t.Parallel()
	s := spreadOut(300, 10)
	for name, search := range map[string]solve.Solver{
		"stopped at once":    {Stop: func() bool { return true }},
		"with no effort":     {Effort: -1},
		"with little effort": {Effort: 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			search.First = func(p planner.Plan) {
				calls++
				if err := check.Plan(s, p); err != nil {
					t.Error(err)
				}
			}
			p := search.Plan(s)
			if err := check.Plan(s, p); err != nil {
				t.Error(err)
			}
			if len(p.Unplaced) > 0 {
				t.Errorf("%d pods have no place, the first: %v", len(p.Unplaced), p.Unplaced[0])
			}
			if calls != 1 {
				t.Errorf("told of a first plan %d times", calls)
			}
		})
	}
}

func TestPlanWithRulesIsCloseToBound(t *testing.T) {
	t.Parallel()
	s := spreadOut(300, 10)
	p := solve.Plan(s)
	if err := check.Plan(s, p); err != nil {
		t.Fatal(err)
	}
	// The bound ignores zones. Whole machines in each of three zones cost 10 % more when the test was written.
	t.Logf("price %d, bound %d", p.Price, p.Bound)
	if len(p.Unplaced) > 0 || (p.Price-p.Bound)*100 > 20*p.Bound {
		t.Errorf("%d pods have no place, price %d, bound %d: more than 20 %% apart", len(p.Unplaced), p.Price, p.Bound)
	}
}

func TestAppliedPlanPlacesPodsThatOnlyPodByPodSearchPlaces(t *testing.T) {
	t.Parallel()
	pool := plantest.Pool("gpu-shared")
	one := planner.Physical{GPUs: 1, Nodes: 1}
	offering := func(name string, free planner.Resources) planner.Offering {
		return planner.Offering{InstanceType: name, Zone: "zone-a", CapacityType: "on-demand", Price: 1, Free: free, Physical: one, Domains: []int{0}}
	}
	s := planner.Snapshot{
		Pools: []planner.Pool{pool},
		Offerings: []planner.Offering{
			offering("type-0", planner.Resources{MilliCPU: 1, Pods: 1, Replicas: 1}),
			offering("type-1", planner.Resources{Pods: 1, Replicas: 1}),
			offering("type-2", planner.Resources{MilliCPU: 2, Pods: 2, Replicas: 1}),
		},
		Classes: []planner.Class{
			{Pods: []string{"a-0", "a-1"}, Requests: planner.Resources{Pods: 1}, Offerings: []int{0}},
			{Pods: []string{"b-0", "b-1"}, Requests: planner.Resources{MilliCPU: 1, Pods: 1}, Offerings: []int{0, 2}},
		},
		Topologies: []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: []string{"zone-a", "zone-b", "zone-c"}}},
		Rules: []planner.Rule{{
			Kind: planner.Spread, Name: "spread", Classes: []int{0, 1}, Counted: []int{0, 1}, Present: []int64{0, 1, 1}, MaxSkew: 2,
		}},
	}
	first := solve.Plan(s)
	again := solve.Plan(plantest.Applied(s, first))
	if len(first.Unplaced) != 1 || len(again.Launches) > 0 || len(again.Unplaced) != 1 {
		t.Errorf("first %v, again %v: want one pod without a place both times and no machine the second time", first, again)
	}
}
