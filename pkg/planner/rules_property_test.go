package planner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
)

// few is small enough for the oracle, which tries everything.
var few = plantest.Limits{Pods: 5, Classes: 3, Nodes: 2}

// freely is few without limits and offerings that cannot be had, where heuristics under limits play no part.
var freely = plantest.Limits{Pods: 5, Classes: 3, Nodes: 2, Free: true}

var anyRules = plantest.RuledSnapshots(plantest.RuleLimits{
	Limits: plantest.Limits{Pods: 14, Classes: 6, Nodes: 3}, Rules: 3, Wishes: true, Priorities: true, Weights: true, MinValues: true,
})

// keepsRules: a plan for any valid snapshot with rules passes Check.
func keepsRules(t *rapid.T) {
	s := anyRules.Draw(t, "snapshot")
	p := planner.Build(s)
	if err := planner.Check(s, p); err != nil {
		t.Fatalf("%v: %v%s", err, p, outline(s))
	}
}

// ruledNonsense: any values at all give a plan that mentions each pod once.
func ruledNonsense(t *rapid.T) {
	s := plantest.RuledNonsense().Draw(t, "snapshot")
	p := planner.Build(s)
	seen := map[string]int{}
	for _, pod := range placedPods(p) {
		seen[pod]++
	}
	for _, x := range p.Unplaced {
		seen[x.Pod]++
		if x.Reason == "" && x.Message != "" {
			t.Fatalf("pod %s has no reason", x.Pod)
		}
	}
	for _, c := range s.Classes {
		for _, pod := range c.Pods {
			if seen[pod] != 1 {
				t.Fatalf("pod %s is in the plan %d times", pod, seen[pod])
			}
		}
	}
	if planner.Validate(s) == nil {
		if err := planner.Check(s, p); err != nil {
			t.Fatal(err)
		}
	}
}

// rulesOrderFree: the order of a snapshot makes no difference.
func rulesOrderFree(t *rapid.T) {
	s := anyRules.Draw(t, "snapshot")
	shuffled := plantest.RulesShuffled(s, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
	a, b := plantest.Names(s, planner.Build(s)), plantest.Names(shuffled, planner.Build(shuffled))
	if diff := cmp.Diff(a, b); diff != "" {
		t.Fatal(diff)
	}
}

// boundUnderRules: bound ≤ the least price under the rules ≤ price, for the pods that are placed.
func boundUnderRules(t *rapid.T) {
	s := plantest.RuledSnapshots(plantest.RuleLimits{Limits: few, Rules: 2, Wishes: true, Priorities: true, Weights: true}).Draw(t, "snapshot")
	p := planner.Build(s)
	best, ok := plantest.LeastUnderRules(s, placedPods(p))
	if !ok || p.Bound > best || best > p.Price {
		t.Fatalf("bound %d, least %d (found: %t), price %d: want them in this order: %v%s", p.Bound, best, ok, p.Price, p, outline(s))
	}
}

// placesMost: under a rule of pods about themselves as many have a place as can have one; under a rule about other pods one or two fewer, where
// which of the classes is to give way is a matter of trying all.
func placesMost(kind planner.RuleKind, topology int) func(*rapid.T) {
	return func(t *rapid.T) {
		mutual := rapid.Bool().Draw(t, "mutual")
		s := plantest.RuledSnapshots(plantest.RuleLimits{
			Limits: freely, Rules: 1, Kinds: []planner.RuleKind{kind}, Topologies: []int{topology}, Mutual: mutual,
		}).Draw(t, "snapshot")
		p := planner.Build(s)
		most, _ := plantest.MostUnderRules(s)
		if n := len(placedPods(p)); n > most || mutual && n < most || n < most-2 {
			t.Fatalf("%d pods have a place, %d can: %v%s", n, most, p, outline(s))
		}
	}
}

func TestAPlanKeepsTheRulesOfTheScheduler(t *testing.T)          { property(keepsRules)(t) }
func TestNonsensicalRulesGiveAPlanAndNoPanic(t *testing.T)       { property(ruledNonsense)(t) }
func TestTheOrderOfRuledSnapshotsMakesNoDifference(t *testing.T) { property(rulesOrderFree)(t) }
func TestTheBoundIsBelowTheOptimumUnderRules(t *testing.T)       { property(boundUnderRules)(t) }

func TestAsManyPodsAsCanHaveAPlaceUnderASpread(t *testing.T) {
	property(placesMost(planner.Spread, 0))(t)
}
func TestAsManyPodsAsCanHaveAPlaceTogetherInAZone(t *testing.T) {
	property(placesMost(planner.Together, 0))(t)
}
func TestAsManyPodsAsCanHaveAPlaceTogetherOnAMachine(t *testing.T) {
	property(placesMost(planner.Together, planner.PerNode))(t)
}
func TestAsManyPodsAsCanHaveAPlaceApartInZones(t *testing.T) {
	property(placesMost(planner.Apart, 0))(t)
}
func TestAsManyPodsAsCanHaveAPlaceUnderASpreadOverMachines(t *testing.T) {
	property(placesMost(planner.Spread, planner.PerNode))(t)
}
func TestAsManyPodsAsCanHaveAPlaceApartOnMachines(t *testing.T) {
	property(placesMost(planner.Apart, planner.PerNode))(t)
}

func FuzzRules(f *testing.F)            { f.Fuzz(rapid.MakeFuzz(keepsRules)) }
func FuzzNonsensicalRules(f *testing.F) { f.Fuzz(rapid.MakeFuzz(ruledNonsense)) }
func FuzzBoundUnderRules(f *testing.F)  { f.Fuzz(rapid.MakeFuzz(boundUnderRules)) }

// outline is a snapshot with rules in a few lines, to see at once what is wrong with a plan for it.
func outline(s planner.Snapshot) string {
	var out strings.Builder
	for i, p := range s.Pools {
		fmt.Fprintf(&out, "\npool %d: nodes %d GPUs %d closed %t weight %d %v", i, p.Remaining.Nodes, p.Remaining.GPUs, p.Closed != nil, p.Weight, p.MinValues)
	}
	for i, o := range s.Offerings {
		fmt.Fprintf(&out, "\noffering %d: pool %d at %d in %v has %v GPUs %d unavailable %t", i, o.Pool, o.Price, o.Domains, o.Free, o.Physical.GPUs, o.Unavailable != nil)
	}
	for i, n := range s.Nodes {
		fmt.Fprintf(&out, "\nnode %d: in %v has %v", i, n.Domains, n.Free)
	}
	for i, c := range s.Classes {
		fmt.Fprintf(&out, "\nclass %d: %d pods of %v priority %d offerings %v nodes %v wishes %v", i, len(c.Pods), c.Requests, c.Priority, c.Offerings, c.Nodes, c.Wishes)
	}
	for i, r := range s.Rules {
		fmt.Fprintf(&out, "\nrule %d: %s %d of %v counts %v present %v elsewhere %d maxSkew %d minDomains %d eligible %v",
			i, r.Kind, r.Topology, r.Classes, r.Counted, r.Present, r.Elsewhere, r.MaxSkew, r.MinDomains, r.Eligible)
	}
	return out.String()
}
