package solve_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// spreadOut returns a mix over three zones. Every class is spread over the zones, and every other class over machines as well.
func spreadOut(pods, shapes int) planner.Snapshot {
	s := plantest.Mixed(plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10), pods, shapes, 1)
	s.Topologies = []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: plantest.Zones()}}
	for i := range s.Offerings {
		for z, zone := range plantest.Zones() {
			if s.Offerings[i].Zone == zone {
				s.Offerings[i].Domains = []int{z}
			}
		}
	}
	for c := range s.Classes {
		var eligible []int
		for _, i := range s.Classes[c].Offerings {
			if d := s.Offerings[i].Domains[0]; !slices.Contains(eligible, d) {
				eligible = append(eligible, d)
			}
		}
		slices.Sort(eligible)
		s.Rules = append(s.Rules, planner.Rule{
			Kind: planner.Spread, Name: fmt.Sprint("zones of ", c), Topology: 0, Classes: []int{c}, Counted: []int{c}, MaxSkew: 2, Eligible: eligible,
		})
		if c%2 == 0 {
			s.Rules = append(s.Rules, planner.Rule{
				Kind: planner.Spread, Name: fmt.Sprint("machines of ", c), Topology: planner.PerNode, Classes: []int{c}, Counted: []int{c}, MaxSkew: 5,
			})
		}
	}
	return s
}

func BenchmarkBuildUnderRules(b *testing.B) {
	for _, c := range []struct{ pods, shapes int }{{50, 5}, {1_000, 20}, {10_000, 50}} {
		b.Run(fmt.Sprintf("%d pods in %d shapes", c.pods, c.shapes), func(b *testing.B) {
			s := spreadOut(c.pods, c.shapes)
			var p planner.Plan
			for b.Loop() {
				p = solve.Plan(s)
			}
			if err := check.Plan(s, p); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(p.Unplaced)), "unplaced")
			b.ReportMetric(100*float64(p.Price-p.Bound)/float64(p.Bound), "%gap")
		})
	}
}

// tenants returns a snapshot with the given number of classes of three pods. Each class has rules of its own, like a Deployment: its pods may not share a
// machine, and are spread over zones and machines.
func tenants(classes int) planner.Snapshot {
	s := planner.Snapshot{
		Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.SpotOfferings(plantest.G4dn(), plantest.Zones(), 10),
		Topologies: []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: plantest.Zones()}},
	}
	for i := range s.Offerings {
		s.Offerings[i].Domains = []int{slices.Index(plantest.Zones(), s.Offerings[i].Zone)}
	}
	for c := range classes {
		s.Classes = append(s.Classes, plantest.Class(s, fmt.Sprintf("app-%05d", c), 3, plantest.Request(int64(100+c%7*50), int64(256+c%5*256), 1)))
		own := []int{c}
		s.Rules = append(s.Rules,
			planner.Rule{Kind: planner.Apart, Name: fmt.Sprint("apart on machines ", c), Topology: planner.PerNode, Classes: own, Counted: own},
			planner.Rule{Kind: planner.Spread, Name: fmt.Sprint("zones of ", c), Topology: 0, Classes: own, Counted: own, MaxSkew: 1},
			planner.Rule{Kind: planner.Spread, Name: fmt.Sprint("machines of ", c), Topology: planner.PerNode, Classes: own, Counted: own, MaxSkew: 1})
	}
	return s
}

// BenchmarkBuildForTenants measures planning with a budget of 200 ms, adding alternatives, and checking the plan.
func BenchmarkBuildForTenants(b *testing.B) {
	for _, classes := range []int{100, 300, 1_000, 3_000} {
		b.Run(fmt.Sprint(classes, " classes"), func(b *testing.B) {
			s := tenants(classes)
			var p planner.Plan
			for b.Loop() {
				started := time.Now()
				p = solve.Solver{Stop: func() bool { return time.Since(started) >= 200*time.Millisecond }}.Plan(s)
			}
			b.ReportMetric(float64(len(p.Unplaced)), "unplaced")
			b.ReportMetric(float64(p.Price)/1e6, "$/h")
			started := time.Now()
			p = alternatives.Add(s, p)
			b.ReportMetric(float64(time.Since(started).Milliseconds()), "ms/alternatives")
			started = time.Now()
			if err := check.Plan(s, p); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(time.Since(started).Milliseconds()), "ms/check")
		})
	}
}
