package planner_test

import (
	"fmt"
	"slices"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
)

// spreadOut is a mix over three zones in which every class is spread over the zones, and every other one over machines as well.
func spreadOut(pods, shapes int) planner.Snapshot {
	s := plantest.Mixed(plantest.SpotOfferings(plantest.G4dn(), zones(), 10), pods, shapes, 1)
	s.Topologies = []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: zones()}}
	for i := range s.Offerings {
		for z, zone := range zones() {
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
				p = planner.Build(s)
			}
			if err := planner.Check(s, p); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(p.Unplaced)), "unplaced")
			b.ReportMetric(100*float64(p.Price-p.Bound)/float64(p.Bound), "%gap")
		})
	}
}
