package solve_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// fewLarge returns a snapshot that needs six machines. No relaxation excludes five and a half.
func fewLarge() planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("a")}}
	for _, o := range []struct {
		name                     string
		price                    planner.MicroUSD
		cpu, mib, replicas, pods int64
	}{
		{"xlarge", 526_000, 3740, 14_281, 10, 24},
		{"2xlarge", 752_000, 7730, 29_436, 10, 24},
		{"4xlarge", 1_204_000, 15_710, 59_746, 10, 24},
		{"8xlarge", 2_176_000, 31_670, 120_048, 10, 53},
		{"12xlarge", 3_912_000, 47_630, 178_733, 40, 229},
		{"16xlarge", 4_352_000, 63_590, 241_290, 10, 53},
		{"metal", 7_824_000, 95_510, 355_062, 80, 732},
	} {
		s.Offerings = append(s.Offerings, planner.Offering{
			InstanceType: o.name, Price: o.price, Physical: planner.Physical{Nodes: 1},
			Free: planner.Resources{MilliCPU: o.cpu, MemoryBytes: o.mib * plantest.Mi, Replicas: o.replicas, Pods: o.pods},
		})
	}
	s.Classes = []planner.Class{
		plantest.Class(s, "a", 19, plantest.Request(2000, 2048, 1)),
		plantest.Class(s, "b", 11, plantest.Request(3000, 18_432, 1)),
		plantest.Class(s, "c", 8, plantest.Request(2000, 12_288, 1)),
		plantest.Class(s, "d", 6, plantest.Request(2000, 8192, 1)),
		plantest.Class(s, "e", 6, plantest.Request(8000, 8192, 1)),
	}
	return s
}

// fewAmongNodes returns fewLarge with 40 more nodes, each with room for one pod that no offering admits. There are too many nodes to search for integer numbers
// of machines.
func fewAmongNodes() planner.Snapshot {
	s := fewLarge()
	const nodes = 40
	only := plantest.Class(s, "f", nodes, plantest.Request(100, 128, 0))
	only.Offerings = nil
	for i := range nodes {
		s.Nodes = append(s.Nodes, planner.Node{Name: fmt.Sprint("node-", i), Free: plantest.Request(100, 128, 0)})
		only.Nodes = append(only.Nodes, i)
	}
	s.Classes = append(s.Classes, only)
	return s
}

func TestBranchingProvesOptimalPlanOfFewMachines(t *testing.T) {
	t.Parallel()
	s := fewAmongNodes()
	p := solve.Plan(s)
	const least = 11_112_000
	if p.Price != least || p.Bound != least {
		t.Errorf("costs %d, the bound is %d, the optimum %d", p.Price, p.Bound, least)
	}
}

func TestBranchesKeepCutsOfGroupsInLargePlans(t *testing.T) {
	t.Parallel()
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("a")}}
	for _, o := range []struct {
		name  string
		price planner.MicroUSD
		cpu   int64
	}{{"dear", 900, 90}, {"less dear", 700, 50}, {"middle", 17, 11}, {"small", 10, 7}} {
		s.Offerings = append(s.Offerings, planner.Offering{
			InstanceType: o.name, Price: o.price, Free: planner.Resources{MilliCPU: o.cpu, Pods: 100}, Physical: planner.Physical{Nodes: 1},
		})
	}
	s.Classes = []planner.Class{
		plantest.Class(s, "on dear", 30, planner.Resources{MilliCPU: 4, Pods: 1}),
		plantest.Class(s, "on less dear", 20, planner.Resources{MilliCPU: 6, Pods: 1}),
		plantest.Class(s, "two", 70, planner.Resources{MilliCPU: 2, Pods: 1}),
		plantest.Class(s, "three", 126, planner.Resources{MilliCPU: 3, Pods: 1}),
		plantest.Class(s, "five", 50, planner.Resources{MilliCPU: 5, Pods: 1}),
	}
	s.Classes[0].Offerings, s.Classes[1].Offerings = []int{0}, []int{1}
	p := solve.Solver{Effort: 200_000}.Plan(s)
	const least = 4915
	if p.Price != least || p.Bound > least || p.Bound < least-1 {
		t.Errorf("launches %d machines at %d, the bound is %d", len(p.Launches), p.Price, p.Bound)
	}
}
