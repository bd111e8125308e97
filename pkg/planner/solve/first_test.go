package solve_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// contested returns a snapshot of three important and twenty other pods, of which a machine holds ten, and of which the others came first.
func contested() planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.Offerings(plantest.G4dn()[:1], 10)}
	low, high := plantest.Class(s, "a-batch", 20, plantest.Request(300, 1024, 1)), plantest.Class(s, "b-service", 3, plantest.Request(300, 1024, 1))
	low.Priority, high.Priority = -5, 1000
	s.Classes = []planner.Class{low, high}
	return s
}

func TestHigherPriorityIsPlacedFirstWhereNotEverythingFits(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*planner.Snapshot){
		"limit of nodes": func(s *planner.Snapshot) { s.Pools[0].Remaining.Nodes = 1 },
		"limit of GPUs":  func(s *planner.Snapshot) { s.Pools[0].Remaining.GPUs = 1 },
		"stock": func(s *planner.Snapshot) {
			s.Stocks, s.Offerings[0].Draws = []planner.Stock{{Name: "cr-1", Left: 1}}, []planner.Draw{{Stock: 0, Amount: 1}}
		},
		"room of a node": func(s *planner.Snapshot) {
			o := s.Offerings[0]
			s.Pools[0].Remaining.Nodes = 0
			s.Nodes = []planner.Node{{Name: "a", Free: o.Free, GPUs: o.GPUs}}
			s.Classes[0].Nodes, s.Classes[1].Nodes = []int{0}, []int{0}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := contested()
			edit(&s)
			plan := solve.Plan(s)
			if err := check.Plan(s, plan); err != nil {
				t.Fatal(err)
			}
			plan = solve.SayWhoWentFirst(s, solve.SayWhoWentFirst(s, plan))
			if len(plan.Unplaced) != 13 {
				t.Fatalf("%d pods have no place, want 13", len(plan.Unplaced))
			}
			for _, u := range plan.Unplaced {
				if !strings.HasPrefix(u.Pod, "default/a-batch") {
					t.Errorf("%s has no place", u.Pod)
				}
				if n := strings.Count(u.Message, "; 3 pods of higher priority were placed first"); n != 1 {
					t.Errorf("%s: %s", u.Reason, u.Message)
				}
			}
		})
	}
}

func TestPodsThatCauseNoMachineUseOnlyRoomThatIsLeft(t *testing.T) {
	t.Parallel()
	s := contested()
	o := s.Offerings[0]
	s.Nodes = []planner.Node{{Name: "a", Free: o.Free, GPUs: o.GPUs}}
	s.Classes[0].Offerings, s.Classes[0].NoOffering = nil, &planner.Refusal{Reason: planner.ReasonPriority, Message: "too low"}
	s.Classes[0].Nodes, s.Classes[1].Nodes = []int{0}, []int{0}
	for name, plan := range map[string]planner.Plan{
		"anew": solve.Plan(s), "resumed": solve.Solver{}.Resume(s, planner.Plan{Placements: []planner.Placement{{Node: 0, Pods: s.Classes[0].Pods[:10]}}}),
	} {
		if err := check.Plan(s, plan); err != nil {
			t.Error(name, err)
		}
		// Planned at once, ten of the others would have the node, and the important pods a machine.
		if len(plan.Launches) != 0 || len(plan.Placements) != 1 || len(plan.Placements[0].Pods) != 10 || len(plan.Unplaced) != 13 {
			t.Errorf("%s: %+v", name, plan)
		}
	}
}

func TestNobodyWentFirstAmongEquals(t *testing.T) {
	t.Parallel()
	s := contested()
	s.Pools[0].Remaining.Nodes, s.Classes[0].Priority = 1, 1000
	for _, u := range solve.SayWhoWentFirst(s, solve.Plan(s)).Unplaced {
		if strings.Contains(u.Message, "priority") {
			t.Errorf("%s: %s", u.Pod, u.Message)
		}
	}
}
