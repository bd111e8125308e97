package solve_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

func TestBoundAllowsMachineToHoldPodsThatFitNode(t *testing.T) {
	t.Parallel()
	s := planner.Snapshot{
		Pools: []planner.Pool{plantest.Pool("a")},
		Offerings: []planner.Offering{
			{InstanceType: "two", Price: 1, Free: planner.Resources{Pods: 2}, Physical: planner.Physical{Nodes: 1}},
			{InstanceType: "one", Price: 1, Free: planner.Resources{Pods: 1}, Physical: planner.Physical{Nodes: 1}},
		},
		Nodes: []planner.Node{{Name: "node-1", Free: planner.Resources{Pods: 1}}},
	}
	s.Classes = []planner.Class{plantest.Class(s, "pair", 2, planner.Resources{Pods: 1}), plantest.Class(s, "single", 1, planner.Resources{Pods: 1})}
	s.Classes[0].Offerings, s.Classes[1].Offerings, s.Classes[1].Nodes = []int{0}, []int{1}, nil
	_, least := plantest.Cheapest(s)
	if p := solve.BuildByMix(s); p.Bound > least || p.Price != least {
		t.Errorf("costs %d, the bound is %d, brute force finds %d", p.Price, p.Bound, least)
	}
}

// fewExpensiveMachines returns a snapshot with so many pods for small machines that the search does not branch, and with a few pods that only expensive machines admit. The
// other pods fill those machines up.
func fewExpensiveMachines() planner.Snapshot {
	s := planner.Snapshot{
		Pools: []planner.Pool{plantest.Pool("a")},
		Offerings: []planner.Offering{
			{InstanceType: "dear", Price: 900, Free: planner.Resources{MilliCPU: 90, Pods: 100}, Physical: planner.Physical{Nodes: 1}},
			{InstanceType: "small", Price: 10, Free: planner.Resources{MilliCPU: 7, Pods: 100}, Physical: planner.Physical{Nodes: 1}},
		},
	}
	s.Classes = []planner.Class{
		plantest.Class(s, "bound", 30, planner.Resources{MilliCPU: 4, Pods: 1}),
		plantest.Class(s, "three", 460, planner.Resources{MilliCPU: 3, Pods: 1}),
		plantest.Class(s, "two", 200, planner.Resources{MilliCPU: 2, Pods: 1}),
	}
	s.Classes[0].Offerings = []int{0}
	return s
}

func TestCutRoundsUpMachinesOfOneGroup(t *testing.T) {
	t.Parallel()
	s := fewExpensiveMachines()
	p := solve.Plan(s)
	// For the pods that only the expensive machine admits, one machine and a fraction of another would be enough.
	if gap := p.Price - p.Bound; gap > p.Price/50 {
		t.Errorf("costs %d, the bound is %d", p.Price, p.Bound)
	}
}

func TestSearchStoppedAtOnceReturnsBound(t *testing.T) {
	t.Parallel()
	for _, pods := range []int{40, 200, 2000} {
		s := plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), pods, 20, 3)
		p := solve.Solver{Stop: func() bool { return true }}.Plan(s)
		if gap := p.Price - p.Bound; gap > p.Price/2 {
			t.Errorf("%d pods cost %d, the bound is %d", pods, p.Price, p.Bound)
		}
	}
}

// expensiveGroups returns a snapshot in which one expensive machine type is the only one for some pods, and shares other pods with two cheaper types, some with each.
// One machine of the first type suffices for the first two groups of pods, and for the first and the third, but not for all three.
func expensiveGroups() planner.Snapshot {
	s := planner.Snapshot{
		Pools: []planner.Pool{plantest.Pool("a")},
		Offerings: []planner.Offering{
			{InstanceType: "dearest", Price: 9000, Free: planner.Resources{MilliCPU: 100, Pods: 20}, Physical: planner.Physical{Nodes: 1}},
			{InstanceType: "dear", Price: 4000, Free: planner.Resources{MilliCPU: 100, Pods: 20}, Physical: planner.Physical{Nodes: 1}},
			{InstanceType: "dear, too", Price: 4100, Free: planner.Resources{MilliCPU: 100, Pods: 20}, Physical: planner.Physical{Nodes: 1}},
			{InstanceType: "small", Price: 10, Free: planner.Resources{MilliCPU: 7, Pods: 3}, Physical: planner.Physical{Nodes: 1}},
		},
	}
	s.Classes = []planner.Class{
		plantest.Class(s, "dearest", 13, planner.Resources{MilliCPU: 1, Pods: 1}),
		plantest.Class(s, "either", 5, planner.Resources{MilliCPU: 2, Pods: 1}),
		plantest.Class(s, "or", 5, planner.Resources{MilliCPU: 2, Pods: 1}),
		plantest.Class(s, "three", 460, planner.Resources{MilliCPU: 3, Pods: 1}),
		plantest.Class(s, "two", 200, planner.Resources{MilliCPU: 2, Pods: 1}),
	}
	s.Classes[0].Offerings, s.Classes[1].Offerings, s.Classes[2].Offerings = []int{0}, []int{0, 1}, []int{0, 2}
	return s
}

func TestCutRoundsUpMachinesOfSeveralGroups(t *testing.T) {
	t.Parallel()
	s := expensiveGroups()
	p := solve.Plan(s)
	if err := check.Plan(s, p); err != nil {
		t.Fatal(err)
	}
	if gap := p.Price - p.Bound; gap > p.Price/100 {
		t.Errorf("costs %d for %s, the bound is %d", p.Price, plantest.Counts(s, p), p.Bound)
	}
}
