package firstfit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest"
)

var anySnapshot = plantest.Snapshots(plantest.Limits{Pods: 14, Classes: 6, Nodes: 3})

func TestFirstFitLaunchesSameMachinesAsKarpenter(t *testing.T) {
	t.Parallel()
	// The prices are those of Karpenter 1.14.1's scheduler, see test/suites/karpenter.
	for _, c := range []struct {
		pods     int
		price    planner.MicroUSD
		machines string
	}{
		{5, 752_000, "1 g4dn.2xlarge"},
		{11, 3_912_000, "1 g4dn.12xlarge"},
		{41, 7_824_000, "1 g4dn.metal"},
		{80, 7_824_000, "1 g4dn.metal"},
		{100, 11_736_000, "1 g4dn.12xlarge, 1 g4dn.metal"},
		{160, 15_648_000, "2 g4dn.metal"},
	} {
		s := plantest.Identical(plantest.Offerings(plantest.G4dn(), 10), c.pods, plantest.Request(1000, 2048, 1))
		p := firstfit.Plan(s)
		if err := check.Plan(s, p); err != nil {
			t.Fatal(err)
		}
		if p.Price != c.price || plantest.Counts(s, p) != c.machines {
			t.Errorf("%d pods: got %s at %d, want %s at %d", c.pods, plantest.Counts(s, p), p.Price, c.machines, c.price)
		}
	}
}

// crowd returns a snapshot with one machine type that has the given GPUs and plenty of everything else.
func crowd(gpus ...planner.GPU) planner.Snapshot {
	var replicas int64
	for _, g := range gpus {
		replicas += g.Replicas
	}
	return planner.Snapshot{
		Pools: []planner.Pool{plantest.Pool("pool")},
		Offerings: []planner.Offering{{
			InstanceType: "type", Zone: "zone-a", CapacityType: "on-demand", Price: 1, GPUs: gpus,
			Free:     planner.Resources{MilliCPU: 1000, MemoryBytes: 1000, Pods: 100, Replicas: replicas},
			Physical: planner.Physical{GPUs: int64(len(gpus)), Nodes: 1},
		}},
	}
}

func TestFirstFitPutsStatedMemoryOnOneGPU(t *testing.T) {
	t.Parallel()
	s := crowd(planner.GPU{Replicas: 4, MemoryBytes: 10}, planner.GPU{Replicas: 4, MemoryBytes: 10})
	big := plantest.Class(s, "big", 3, planner.Resources{MilliCPU: 2, Pods: 1, Replicas: 1})
	big.GPUMemoryBytes = 6
	small := plantest.Class(s, "small", 3, planner.Resources{MilliCPU: 1, Pods: 1, Replicas: 1})
	small.GPUMemoryBytes = 4
	s.Classes = []planner.Class{big, small}
	p := firstfit.Plan(s)
	want := []planner.Launch{
		{Pods: []string{"default/big-00000", "default/big-00001", "default/small-00000"}, GPUs: []int{0, 1, 0}},
		{Pods: []string{"default/big-00002", "default/small-00001", "default/small-00002"}, GPUs: []int{0, 0, 1}},
	}
	if diff := cmp.Diff(want, p.Launches); diff != "" {
		t.Error(diff)
	}
}

func TestFirstFitLeavesOutPodWhoseMemoryExceedsEveryGPU(t *testing.T) {
	t.Parallel()
	s := crowd(planner.GPU{Replicas: 4, MemoryBytes: 10}, planner.GPU{Replicas: 4, MemoryBytes: 10})
	c := plantest.Class(s, "pod", 1, planner.Resources{Pods: 1, Replicas: 1})
	c.GPUMemoryBytes = 11
	s.Classes = []planner.Class{c}
	if p := firstfit.Plan(s); len(p.Launches) > 0 || len(p.Unplaced) != 1 {
		t.Errorf("got %+v, want the pod left out: 20 in all are not 11 on one GPU", p)
	}
}

func TestFirstFitKeepsQuotas(t *testing.T) {
	t.Parallel()
	s := crowd(planner.GPU{Replicas: 10})
	s.Quotas = []planner.Quota{{Name: "fpga", Each: 0}, {Name: "host port 80/TCP", Each: 1}}
	s.Offerings[0].Quotas = []planner.Amount{{Quota: 0, Count: 5}}
	fpga := plantest.Class(s, "fpga", 4, planner.Resources{MilliCPU: 2, Pods: 1})
	fpga.Quotas = []planner.Amount{{Quota: 0, Count: 2}}
	port := plantest.Class(s, "port", 3, planner.Resources{MilliCPU: 1, Pods: 1})
	port.Quotas = []planner.Amount{{Quota: 1, Count: 1}}
	s.Classes = []planner.Class{fpga, port}
	p := firstfit.Plan(s)
	var got []int
	for _, l := range p.Launches {
		got = append(got, len(l.Pods))
	}
	if diff := cmp.Diff([]int{3, 3, 1}, got); diff != "" {
		t.Errorf("pods of each machine: want two with two FPGA pods and a port each, and one for the third port\n%s", diff)
	}
}

func TestFirstFitKeepsPodAntiAffinity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		classes, counted []int
		machines         int
	}{
		{"among the same pods", []int{0}, []int{0}, 3},
		{"to other pods", []int{0}, []int{1}, 2},
		{"from other pods that come first", []int{1}, []int{0}, 2},
		{"to pods that do not exist", []int{0}, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := crowd(planner.GPU{Replicas: 10})
			s.Classes = []planner.Class{
				plantest.Class(s, "a", 3, planner.Resources{MilliCPU: 2, Pods: 1}),
				plantest.Class(s, "b", 3, planner.Resources{MilliCPU: 1, Pods: 1}),
			}
			s.Rules = []planner.Rule{{Kind: planner.Apart, Topology: planner.PerNode, Classes: c.classes, Counted: c.counted}}
			if p := firstfit.Plan(s); len(p.Launches) != c.machines || len(p.Unplaced) > 0 {
				t.Errorf("got %+v, want %d machines", p, c.machines)
			}
		})
	}
}

func TestFirstFitPrefersPoolWithHighestWeight(t *testing.T) {
	t.Parallel()
	s := crowd(planner.GPU{Replicas: 1})
	s.Pools = append(s.Pools, plantest.Pool("heavy"))
	s.Pools[1].Weight = 1
	dear := s.Offerings[0]
	dear.Pool, dear.Price = 1, 7
	s.Offerings = append(s.Offerings, dear)
	s.Pools[1].Remaining.Nodes = 1
	s.Classes = []planner.Class{plantest.Class(s, "pod", 2, planner.Resources{Pods: 1, Replicas: 1})}
	if p := firstfit.Plan(s); p.Price != 8 {
		t.Errorf("got %+v, want one machine of each pool: the heavy one has room for one", p)
	}
}

func TestFirstFitKeepsEveryRule(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		s := anySnapshot.Draw(t, "snapshot")
		if err := check.Plan(s, firstfit.Plan(s)); err != nil {
			t.Fatal(err)
		}
		if err := check.Plan(s, firstfit.FirstFitByLevel(s)); err != nil {
			t.Fatalf("by level: %v", err)
		}
	})(t)
}

func TestFirstFitDoesNotDependOnOrder(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		s := anySnapshot.Draw(t, "snapshot")
		shuffled := plantest.Shuffled(s, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
		if diff := cmp.Diff(plantest.Names(s, firstfit.Plan(s)), plantest.Names(shuffled, firstfit.Plan(shuffled))); diff != "" {
			t.Fatal(diff)
		}
	})(t)
}

func TestFirstFitByClassMatchesFirstFitByPod(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		s := anySnapshot.Draw(t, "snapshot")
		p := firstfit.Plan(s)
		split := plantest.Clone(s)
		split.Classes = nil
		parts := make([][]int, len(s.Classes)) // the classes into which each class is split
		for i, c := range s.Classes {
			for _, pod := range c.Pods {
				one := c
				one.Pods = []string{pod}
				parts[i] = append(parts[i], len(split.Classes))
				split.Classes = append(split.Classes, one)
			}
		}
		split.Rules = slices.Clone(s.Rules)
		for i := range split.Rules {
			r := &split.Rules[i]
			r.Classes, r.Counted = all(parts, r.Classes), all(parts, r.Counted)
		}
		if diff := cmp.Diff(sizes(p), sizes(firstfit.Plan(split))); diff != "" {
			t.Fatal(diff)
		}
	})(t)
}

func TestFirstFitByLevelMatchesFirstFitForFewMachines(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		s := plantest.Snapshots(plantest.Limits{Pods: 60, Classes: 8, Nodes: 3}).Draw(t, "snapshot")
		p := firstfit.Plan(s)
		if len(p.Launches) > 12 {
			t.Skip("sort.Slice is not stable beyond twelve")
		}
		if diff := cmp.Diff(sizes(p), sizes(firstfit.FirstFitByLevel(s))); diff != "" {
			t.Fatal(diff)
		}
	})(t)
}

// sizes describes each machine by its node or offering and its number of pods.
func sizes(p planner.Plan) []string {
	var out []string
	for _, x := range p.Placements {
		out = append(out, fmt.Sprint("node ", x.Node, " with ", len(x.Pods)))
	}
	for _, x := range p.Launches {
		out = append(out, fmt.Sprint("offering ", x.Offering, " with ", len(x.Pods)))
	}
	slices.Sort(out)
	return out
}

func BenchmarkFirstFit(b *testing.B) {
	for _, c := range []struct{ pods, shapes int }{{10_000, 50}, {100_000, 50}, {10_000, 10_000}} {
		b.Run(fmt.Sprintf("pods=%d/shapes=%d", c.pods, c.shapes), func(b *testing.B) {
			s := plantest.Mixed(plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10), c.pods, c.shapes, 1)
			for b.Loop() {
				firstfit.Plan(s)
			}
		})
	}
}

// all returns the parts into which the classes are split.
func all(parts [][]int, classes []int) []int {
	var out []int
	for _, c := range classes {
		out = append(out, parts[c]...)
	}
	return out
}

func TestFirstFitKeepsTopologyRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		rule  planner.Rule
		zones string
		left  int
	}{
		{"spread", planner.Rule{Kind: planner.Spread, Classes: []int{0}, Counted: []int{0}, MaxSkew: 1}, "a+a+b+b", 0},
		{"spread with running pods", planner.Rule{Kind: planner.Spread, Classes: []int{0}, Counted: []int{0}, MaxSkew: 1, Present: []int64{2, 0}}, "a+b+b+b", 0},
		{"together", planner.Rule{Kind: planner.Together, Classes: []int{0}, Counted: []int{0}}, "a+a+a+a", 0},
		{"affinity to running pods", planner.Rule{Kind: planner.Together, Classes: []int{0}, Counted: []int{0}, Present: []int64{0, 1}}, "b+b+b+b", 0},
		{"affinity to pods that run nowhere", planner.Rule{Kind: planner.Together, Classes: []int{0}}, "", 4},
		// Karpenter avoids every domain in which a machine that is being launched may end up.
		{"apart", planner.Rule{Kind: planner.Apart, Classes: []int{0}, Counted: []int{0}}, "a", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := crowd(planner.GPU{Replicas: 1})
			s.Topologies = []planner.Topology{{Key: "zone", Domains: []string{"a", "b"}}}
			s.Offerings = append(s.Offerings, s.Offerings[0])
			for i, zone := range []string{"a", "b"} {
				s.Offerings[i].Zone, s.Offerings[i].Domains = zone, []int{i}
			}
			s.Classes = []planner.Class{plantest.Class(s, "pod", 4, planner.Resources{Pods: 1, Replicas: 1})}
			s.Rules = []planner.Rule{c.rule}
			p := firstfit.Plan(s)
			if err := check.Plan(s, p); err != nil {
				t.Fatal(err)
			}
			var zones []string
			for _, l := range p.Launches {
				zones = append(zones, s.Offerings[l.Offering].Zone)
			}
			if got := strings.Join(zones, "+"); got != c.zones || len(p.Unplaced) != c.left {
				t.Errorf("machines in %q, %d pods left out, want %q and %d", got, len(p.Unplaced), c.zones, c.left)
			}
		})
	}
}
