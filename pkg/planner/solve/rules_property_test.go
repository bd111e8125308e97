package solve_test

import (
	"math/rand"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// few is small enough for the oracle, which enumerates all plans.
var few = plantest.Limits{Pods: 5, Classes: 3, Nodes: 2}

// freely is few without limits and unavailable offerings, so that no heuristics for limits are involved.
var freely = plantest.Limits{Pods: 5, Classes: 3, Nodes: 2, Free: true}

var anyRules = plantest.RuledSnapshots(plantest.RuleLimits{
	Limits: plantest.Limits{Pods: 14, Classes: 6, Nodes: 3}, Rules: 3, Preferences: true, Priorities: true, Weights: true, MinValues: true,
})

// keepsRules checks that a plan for any valid snapshot with rules passes Check.
func keepsRules(t *rapid.T) {
	s := anyRules.Draw(t, "snapshot")
	p := solve.Plan(s)
	if err := check.Plan(s, p); err != nil {
		t.Fatalf("%v: %v%s", err, p, plantest.Outline(s))
	}
}

// rulesOrderFree checks that the order of a snapshot does not affect the plan.
func rulesOrderFree(t *rapid.T) { makesNoDifferenceInOrder(t, anyRules.Draw(t, "snapshot")) }

// boundUnderRules checks bound ≤ lowest price under the rules ≤ price, for the pods that are placed.
func boundUnderRules(t *rapid.T) {
	s := plantest.RuledSnapshots(plantest.RuleLimits{Limits: few, Rules: 2, Preferences: true, Priorities: true, Weights: true}).Draw(t, "snapshot")
	p := solve.Plan(s)
	best, ok := plantest.Optimum(s, plantest.PlacedPods(p))
	if !ok || p.Bound > best || best > p.Price {
		t.Fatalf("bound %d, least %d (found: %t), price %d: want them in this order: %v%s", p.Bound, best, ok, p.Price, p, plantest.Outline(s))
	}
}

// placesMost checks that as many pods are placed as can be, under a rule of one class about its own pods, of several classes about theirs, or about others.
func placesMost(kind planner.RuleKind, topology int) func(*rapid.T) {
	return func(t *rapid.T) {
		limits := plantest.RuleLimits{Limits: freely, Rules: 1, Kinds: []planner.RuleKind{kind}, Topologies: []int{topology}}
		of := rapid.IntRange(0, 2).Draw(t, "of")
		limits.Mutual = of < 2
		if of == 0 {
			limits.Classes = 1
		}
		s := plantest.RuledSnapshots(limits).Draw(t, "snapshot")
		p := solve.Plan(s)
		most, _ := plantest.MostUnderRules(s)
		if n := len(plantest.PlacedPods(p)); n != most {
			t.Fatalf("%d pods have a place, %d can: %v%s", n, most, p, plantest.Outline(s))
		}
	}
}

// TestPlansOfFewPodsUnderRulesAreOptimal compares plans with those of exhaustive search, under up to three rules and tight limits.
func TestPlansOfFewPodsUnderRulesAreOptimal(t *testing.T) {
	t.Parallel()
	cases := 120
	if testing.Short() {
		cases = 40
	}
	optimal := 0
	for seed := range cases {
		r := rand.New(rand.NewSource(int64(seed)))
		s := plantest.TightRules(r, 4+r.Intn(3))
		p := solve.Plan(s)
		most, price := plantest.MostUnderRules(s)
		if n := len(plantest.PlacedPods(p)); n != most || p.Price != price {
			t.Errorf("case %d: %d pods for %d, %d can be placed for %d: %v%s", seed, n, p.Price, most, price, p, plantest.Outline(s))
		}
		if p.Bound == p.Price {
			optimal++
		}
	}
	if optimal < cases*95/100 {
		t.Errorf("%d of %d plans are known to be optimal", optimal, cases)
	}
}

func TestPlanKeepsSchedulingRules(t *testing.T) { properties.Check(keepsRules)(t) }
func TestPlanWithRulesDoesNotDependOnOrderOfSnapshot(t *testing.T) {
	properties.Check(rulesOrderFree)(t)
}
func TestBoundIsAtMostOptimumUnderRules(t *testing.T) { properties.Check(boundUnderRules)(t) }

func TestPlanPlacesMostPodsUnderZonalSpread(t *testing.T) {
	properties.Check(placesMost(planner.Spread, 0))(t)
}

func TestPlanPlacesMostPodsUnderZonalAffinity(t *testing.T) {
	properties.Check(placesMost(planner.Together, 0))(t)
}

func TestPlanPlacesMostPodsUnderHostAffinity(t *testing.T) {
	properties.Check(placesMost(planner.Together, planner.PerNode))(t)
}

func TestPlanPlacesMostPodsUnderZonalAntiAffinity(t *testing.T) {
	properties.Check(placesMost(planner.Apart, 0))(t)
}

func TestPlanPlacesMostPodsUnderHostSpread(t *testing.T) {
	properties.Check(placesMost(planner.Spread, planner.PerNode))(t)
}

func TestPlanPlacesMostPodsUnderHostAntiAffinity(t *testing.T) {
	properties.Check(placesMost(planner.Apart, planner.PerNode))(t)
}

func FuzzRules(f *testing.F)           { f.Fuzz(rapid.MakeFuzz(keepsRules)) }
func FuzzBoundUnderRules(f *testing.F) { f.Fuzz(rapid.MakeFuzz(boundUnderRules)) }

// placesOf returns the place of each pod: its node, or the offering of its machine.
func placesOf(p planner.Plan) (nodes, offerings map[string]int) {
	nodes, offerings = map[string]int{}, map[string]int{}
	for _, x := range p.Placements {
		for _, pod := range x.Pods {
			nodes[pod] = x.Node
		}
	}
	for _, l := range p.Launches {
		for _, pod := range l.Pods {
			offerings[pod] = l.Offering
		}
	}
	return nodes, offerings
}

// launchable reports whether a machine of an offering could be launched for a pod of a class, given what a plan leaves of the limits.
func launchable(s, left planner.Snapshot, class, offering int) bool {
	o := s.Offerings[offering]
	r := left.Pools[o.Pool].Remaining
	return o.Unavailable == nil && s.Pools[o.Pool].Closed == nil && r.Nodes >= 1 && r.GPUs >= o.Physical.GPUs && supplied(left, o) && len(plantest.Empty(s, offering).With(s, class)) > 0
}

// heaviestFirst checks that a pod on a machine of a pool with lower weight could not have one of a pool with higher weight.
func heaviestFirst(t *rapid.T) {
	s := plantest.RuledSnapshots(plantest.RuleLimits{Limits: plantest.Limits{Pods: 10, Classes: 4, Nodes: 2}, Weights: true}).Draw(t, "snapshot")
	p := solve.Plan(s)
	left := plantest.Applied(s, p)
	_, at := placesOf(p)
	for c, class := range s.Classes {
		for _, pod := range class.Pods {
			i, ok := at[pod]
			for _, j := range class.Offerings {
				if ok && s.Pools[s.Offerings[j].Pool].Weight > s.Pools[s.Offerings[i].Pool].Weight && launchable(s, left, c, j) {
					t.Fatalf("%s is on offering %d, though the heavier pool of %d may launch: %v%s", pod, i, j, p, plantest.Outline(s))
				}
			}
		}
	}
}

// highestFirst checks that as many pods of the highest priority are placed as if there were no others, and that a limit that is not reached has no effect.
func highestFirst(t *rapid.T) {
	s := plantest.RuledSnapshots(plantest.RuleLimits{Limits: few, Priorities: true}).Draw(t, "snapshot")
	p := solve.Plan(s)
	highest := slices.MaxFunc(s.Classes, func(a, b planner.Class) int { return int(a.Priority - b.Priority) }).Priority
	alone := plantest.Clone(s)
	for c := range alone.Classes {
		if alone.Classes[c].Priority != highest {
			alone.Classes[c].Pods = nil
		}
	}
	most, _ := plantest.MostUnderRules(alone)
	n := 0
	for _, pod := range plantest.PlacedPods(p) {
		if slices.ContainsFunc(s.Classes, func(c planner.Class) bool { return c.Priority == highest && slices.Contains(c.Pods, pod) }) {
			n++
		}
	}
	if n != most {
		t.Fatalf("%d pods of the highest priority have a place, %d can: %v%s", n, most, p, plantest.Outline(s))
	}
	equal := plantest.Clone(s)
	for c := range equal.Classes {
		equal.Classes[c].Priority = 0
	}
	if q := solve.Plan(equal); len(q.Unplaced) == len(p.Unplaced) && len(p.Unplaced) == 0 && p.Price != q.Price {
		t.Fatalf("price %d with priorities, %d without, and all have a place: %v%s", p.Price, q.Price, p, plantest.Outline(s))
	}
}

// preferencesGranted checks that, without limits and without preferences of other pods, a pod gets as many of its preferences as any machine that could be
// launched for it grants, beginning with the preference that is given up last.
func preferencesGranted(t *rapid.T) {
	s := plantest.RuledSnapshots(plantest.RuleLimits{Limits: plantest.Limits{Pods: 10, Classes: 4, Nodes: 2, Free: true}, Preferences: true}).Draw(t, "snapshot")
	wishful := rapid.IntRange(0, len(s.Classes)-1).Draw(t, "wishful")
	for c := range s.Classes {
		if c != wishful {
			s.Classes[c].Preferences = nil
		}
	}
	p := solve.Plan(s)
	on, at := placesOf(p)
	for c, class := range s.Classes {
		grants := func(first int, list func(planner.Preference) []int, i int) bool {
			for _, w := range class.Preferences[first:] {
				if !slices.Contains(list(w), i) {
					return false
				}
			}
			return true
		}
		first := 0
		for ; first <= len(class.Preferences); first++ {
			if slices.ContainsFunc(class.Offerings, func(i int) bool {
				return grants(first, func(w planner.Preference) []int { return w.Offerings }, i) && launchable(s, s, c, i)
			}) {
				break
			}
		}
		for _, pod := range class.Pods {
			i, launched := at[pod]
			v, placed := on[pod]
			if first <= len(class.Preferences) && (launched && !grants(first, func(w planner.Preference) []int { return w.Offerings }, i) ||
				placed && !grants(first, func(w planner.Preference) []int { return w.Nodes }, v)) {
				t.Fatalf("%s has given up a preference before the %dth, which can stand: %v%s", pod, first, p, plantest.Outline(s))
			}
		}
	}
}

// choosable checks that, without limits, a pod is placed unless too few machine types hold it for its pool's minValues.
func choosable(t *rapid.T) {
	s := plantest.RuledSnapshots(plantest.RuleLimits{Limits: plantest.Limits{Pods: 10, Classes: 4, Nodes: 2, Free: true}, MinValues: true}).Draw(t, "snapshot")
	p := solve.Plan(s)
	for _, x := range p.Unplaced {
		for c, class := range s.Classes {
			if !slices.Contains(class.Pods, x.Pod) {
				continue
			}
			for pool := range s.Pools {
				values, some := map[string]bool{}, false
				for _, i := range class.Offerings {
					if s.Offerings[i].Pool == pool && launchable(s, s, c, i) {
						some = true
						for _, m := range s.Pools[pool].MinValues {
							values[m.Values[i]] = true
						}
					}
				}
				delete(values, "")
				if some && (len(s.Pools[pool].MinValues) == 0 || len(values) >= s.Pools[pool].MinValues[0].Min) {
					t.Fatalf("%s has no place, though pool %d has %d values: %v%s", x.Pod, pool, len(values), p, plantest.Outline(s))
				}
			}
		}
	}
}

func TestPlanPrefersPoolWithHighestWeight(t *testing.T)  { properties.Check(heaviestFirst)(t) }
func TestPlanPlacesHighestPriorityFirst(t *testing.T)    { properties.Check(highestFirst)(t) }
func TestPlanGrantsPreferencesThatCanBeMet(t *testing.T) { properties.Check(preferencesGranted)(t) }
func TestPlanUsesPoolThatMeetsMinValues(t *testing.T)    { properties.Check(choosable)(t) }

// carriedOut checks that the same pods under the same rules need no further machines once the launches are nodes.
func carriedOut(t *rapid.T) {
	s := plantest.RuledSnapshots(plantest.RuleLimits{
		Limits: plantest.Limits{Pods: 20, Classes: 2, Nodes: 3, Free: true}, Rules: 1, Mutual: true,
	}).Draw(t, "snapshot")
	first := solve.Plan(s)
	applied := plantest.Applied(s, first)
	if again := solve.Plan(applied); len(again.Launches) > 0 || len(again.Unplaced) > len(first.Unplaced) {
		t.Fatalf("launches again: %v after %v%s", again, first, plantest.Outline(applied))
	}
}

func TestAppliedPlanWithRulesLaunchesNothingMore(t *testing.T) { properties.Check(carriedOut)(t) }
