package solve

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
)

// fresh returns a snapshot with two nodes that equal new machines, each with room for one pod, and one pod for each of two classes. Each class has an offering of
// its own.
func fresh() (s planner.Snapshot, launches planner.Plan) {
	room := planner.Resources{MilliCPU: 1000, Pods: 1, Replicas: 1}
	physical := planner.Physical{MilliCPU: 1000, GPUs: 1, Replicas: 1, Nodes: 1}
	s = planner.Snapshot{
		Pools: []planner.Pool{{Name: "pool", Remaining: planner.NoLimits}},
		Nodes: []planner.Node{{Name: "node-1", Free: room}, {Name: "node-2", Free: room}},
	}
	for i, name := range []string{"a", "b"} {
		s.Offerings = append(s.Offerings, planner.Offering{InstanceType: name, Price: 1, Free: room, Physical: physical})
		s.Classes = append(s.Classes, planner.Class{Pods: []string{name}, Requests: room, Offerings: []int{i}, Nodes: []int{0, 1}})
		launches.Launches = append(launches.Launches, planner.Launch{Offering: i, Pods: []string{name}})
		launches.Price++
	}
	return s, launches
}

func TestReplayKeepsNodeFreeForPodsThatOnlyItAdmits(t *testing.T) {
	s, launches := fresh()
	s.Classes[1].Nodes = []int{0}
	if plan := (Solver{}).replay(s, launches); plan.Price != 0 || check.Plan(s, plan) != nil {
		t.Errorf("got %+v, want both pods on nodes", plan)
	}
}

func TestReplayKeepsSpreadWithRunningPods(t *testing.T) {
	s, launches := fresh()
	s.Classes[1].Nodes, s.Classes[1].Blocked = nil, &planner.NextRound
	launches = planner.Plan{Launches: launches.Launches[:1], Price: 1, Unplaced: []planner.Unplaced{{Pod: "b", Refusal: planner.NextRound}}}
	s.Rules = []planner.Rule{{Kind: planner.Spread, Name: "spread", Topology: planner.PerNode, Classes: []int{0}, Counted: []int{0}, Present: []int64{1}, MaxSkew: 1}}
	plan := (Solver{}).replay(s, launches)
	if err := check.Plan(s, plan); err != nil || len(plan.Placements) != 1 || plan.Placements[0].Node != 1 {
		t.Errorf("got %+v (%v), want the pod on the second node", plan, err)
	}
}
