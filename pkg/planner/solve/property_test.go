package solve_test

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
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

var (
	anything   = plantest.Snapshots(plantest.Limits{Pods: 14, Classes: 6, Nodes: 3})
	tiny       = plantest.Snapshots(plantest.Limits{Pods: 6, Classes: 4, Nodes: 2})
	unhindered = plantest.Snapshots(plantest.Limits{Pods: 24, Classes: 6, Nodes: 3, Free: true})
	spoiled    = plantest.Spoiled(plantest.Grouped(anyRules))
	oneClass   = plantest.Snapshots(plantest.Limits{Pods: 6, Classes: 1, Nodes: 2, Free: true})
)

// everyRule checks that a plan for any valid snapshot passes Check.
func everyRule(t *rapid.T) {
	s := anything.Draw(t, "snapshot")
	if err := check.Plan(s, solve.Plan(s)); err != nil {
		t.Fatal(err)
	}
}

// plansForInvalid checks that Contain returns a valid plan for a snapshot that need not be valid, and that this plan names each pod of that snapshot once. Only
// invalid classes are left out.
func plansForInvalid(t *rapid.T) {
	given := spoiled.Draw(t, "snapshot")
	kept, p, aside, err := solve.Contain(given, nil, solve.Plan, never, nil)
	if err != nil {
		if !strings.HasPrefix(err.Error(), "the snapshot is not valid") {
			t.Fatal(err)
		}
		t.Skip(err) // The error concerns all pods.
	}
	if i := slices.IndexFunc(aside, func(a solve.Aside) bool { return !a.Invalid }); i >= 0 {
		t.Fatalf("class %d is valid but left out: %s", aside[i].Class, aside[i].Refusal.Message)
	}
	for _, x := range p.Unplaced {
		if x.Reason == "" && x.Message != "" {
			t.Fatalf("pod %s has no reason", x.Pod)
		}
	}
	namesEachPodOnce(t, given, p)
	if err := check.Plan(kept, p); err != nil {
		t.Fatal(err)
	}
}

// namesEachPodOnce fails if a plan does not name each pod of the snapshot exactly once, or breaks a rule of a valid snapshot.
func namesEachPodOnce(t *rapid.T, s planner.Snapshot, p planner.Plan) {
	t.Helper()
	seen := map[string]int{}
	for _, pod := range plantest.PlacedPods(p) {
		seen[pod]++
	}
	for _, x := range p.Unplaced {
		seen[x.Pod]++
	}
	for _, c := range s.Classes {
		for _, pod := range c.Pods {
			if seen[pod] != 1 {
				t.Fatalf("pod %s is in the plan %d times", pod, seen[pod])
			}
		}
	}
	if planner.Validate(s) == nil {
		if err := check.Plan(s, p); err != nil {
			t.Fatal(err)
		}
	}
}

// orderFree checks that the order of a snapshot does not affect the plan.
func orderFree(t *rapid.T) { makesNoDifferenceInOrder(t, anything.Draw(t, "snapshot")) }

func makesNoDifferenceInOrder(t *rapid.T, s planner.Snapshot) {
	t.Helper()
	shuffled := plantest.Shuffled(s, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
	a, b := plantest.Names(s, solve.Plan(s)), plantest.Names(shuffled, solve.Plan(shuffled))
	if diff := cmp.Diff(a, b); diff != "" {
		t.Fatal(diff)
	}
}

// replansToNothing checks that the same pods need no further machines once the launches are nodes.
func replansToNothing(t *rapid.T) {
	s := unhindered.Draw(t, "snapshot")
	first := solve.Plan(s)
	if again := solve.Plan(plantest.Applied(s, first)); len(again.Launches) > 0 || len(again.Unplaced) > len(first.Unplaced) {
		t.Fatalf("launches again: %v after %v", again, first)
	}
}

// replansWithinStocks checks the same if some machines cost less as long as stocks last, which the launches have used up.
func replansWithinStocks(t *rapid.T) {
	s := unhindered.Draw(t, "snapshot")
	for i, o := range slices.Clone(s.Offerings) {
		if o.Price < 2 || !rapid.Bool().Draw(t, "at a lower price") {
			continue
		}
		o.Price = planner.MicroUSD(rapid.IntRange(1, int(o.Price)-1).Draw(t, "lower price"))
		o.Draws = []planner.Draw{{Stock: len(s.Stocks), Amount: 1}}
		s.Stocks = append(s.Stocks, planner.Stock{Name: fmt.Sprint("stock-", len(s.Stocks)), Left: int64(rapid.IntRange(1, 2).Draw(t, "left"))})
		s.Offerings = append(s.Offerings, o)
		for c := range s.Classes {
			if slices.Contains(s.Classes[c].Offerings, i) {
				s.Classes[c].Offerings = append(s.Classes[c].Offerings, len(s.Offerings)-1)
			}
		}
	}
	first := solve.Plan(s)
	if again := solve.Plan(plantest.Applied(s, first)); len(again.Launches) > 0 || len(again.Unplaced) > len(first.Unplaced) {
		t.Fatalf("launches again: %v after %v", again, first)
	}
}

// boundHolds checks bound ≤ optimum ≤ price, where the optimum is found by enumeration.
func boundHolds(t *rapid.T) {
	s := tiny.Draw(t, "snapshot")
	p := solve.Plan(s)
	best, ok := plantest.Optimum(s, plantest.PlacedPods(p))
	if !ok {
		t.Fatalf("the oracle finds no plan for %v", plantest.PlacedPods(p))
	}
	if p.Bound > best || best > p.Price {
		t.Fatalf("bound %d, optimum %d, price %d: want them in this order", p.Bound, best, p.Price)
	}
}

// boundOfMixHolds checks the same for the heuristics alone, and that their plans keep every rule.
func boundOfMixHolds(t *rapid.T) {
	s := tiny.Draw(t, "snapshot")
	p := solve.BuildByMix(s)
	if err := check.Plan(s, p); err != nil {
		t.Fatal(err)
	}
	best, ok := plantest.Optimum(s, plantest.PlacedPods(p))
	if !ok || p.Bound > best || best > p.Price {
		t.Fatalf("bound %d, optimum %d (found: %t), price %d: want them in this order", p.Bound, best, ok, p.Price)
	}
}

// boundOfManyPodsHolds checks that the bound is at most the lowest price for the pods that a plan places, also that of the heuristics alone.
func boundOfManyPodsHolds(t *rapid.T) {
	s := anything.Draw(t, "snapshot")
	for name, p := range map[string]planner.Plan{"plan": solve.Plan(s), "heuristics": solve.BuildByMix(s)} {
		placed := plantest.PlacedPods(p)
		left, least := plantest.Cheapest(only(s, func(pod string) bool { return slices.Contains(placed, pod) }))
		if left > 0 || p.Bound > least || least > p.Price {
			t.Fatalf("%s: bound %d, optimum %d with %d pods left out, price %d: want them in this order", name, p.Bound, least, left, p.Price)
		}
	}
}

// effortNeverHurts checks that a longer search finds no more expensive plan and no lower bound, and that the first plan keeps every rule.
func effortNeverHurts(t *rapid.T) {
	s := plantest.Snapshots(plantest.Limits{Pods: 60, Classes: 8, Nodes: 2, Free: true}).Draw(t, "snapshot")
	first := -1
	var less planner.Plan
	for _, effort := range []int64{-1, 1, 3000, 30_000, 300_000} {
		more := solve.Solver{Effort: effort, First: func(p planner.Plan) {
			if first = len(p.Unplaced); check.Plan(s, p) != nil {
				t.Fatal(check.Plan(s, p))
			}
		}}.Plan(s)
		if err := check.Plan(s, more); err != nil {
			t.Fatal(err)
		}
		if first < 0 || len(more.Unplaced) > first {
			t.Fatalf("%d pods without a place, %d in the first plan", len(more.Unplaced), first)
		}
		if effort >= 0 && (more.Price > less.Price && len(more.Unplaced) == len(less.Unplaced) || len(more.Unplaced) > len(less.Unplaced)) {
			t.Fatalf("effort %d gives a plan at %d, less gave one at %d", effort, more.Price, less.Price)
		}
		less = more
	}
}

// smallIsOptimal checks that a small plan without limits has the optimal price, and proves it.
func smallIsOptimal(t *rapid.T) {
	s := plantest.Snapshots(plantest.Limits{Pods: 6, Classes: 4, Nodes: 2, Free: true}).Draw(t, "snapshot")
	p := solve.Plan(s)
	if best, _ := plantest.Optimum(s, plantest.PlacedPods(p)); p.Price != best || p.Bound != best {
		t.Fatalf("price %d, bound %d, optimum %d", p.Price, p.Bound, best)
	}
}

// oneClassIsOptimal checks that a plan for a single class has exactly the optimal price.
func oneClassIsOptimal(t *rapid.T) {
	s := oneClass.Draw(t, "snapshot")
	p := solve.Plan(s)
	if best, _ := plantest.Optimum(s, plantest.PlacedPods(p)); p.Price != best || p.Bound != best {
		t.Fatalf("price %d, bound %d, optimum %d", p.Price, p.Bound, best)
	}
}

// choiceNeverCosts checks that one more offering never makes a plan for one class more expensive.
func choiceNeverCosts(t *rapid.T) {
	s := plantest.Snapshots(plantest.Limits{Pods: 200, Classes: 1, Nodes: 2, Free: true}).Draw(t, "snapshot")
	if len(s.Offerings) == 0 {
		return
	}
	fewer := plantest.Clone(s)
	last := len(s.Offerings) - 1
	fewer.Offerings = fewer.Offerings[:last]
	for i := range fewer.Classes {
		fewer.Classes[i].Offerings = slices.DeleteFunc(fewer.Classes[i].Offerings, func(o int) bool { return o == last })
	}
	a, b := solve.Plan(fewer), solve.Plan(s)
	if len(a.Unplaced) == len(b.Unplaced) && b.Price > a.Price {
		t.Fatalf("price %d with one more offering, %d without", b.Price, a.Price)
	}
}

// lessNeverCosts checks that one more offering, or one pod fewer, never makes a plan more expensive by more than the gap to its bound.
func lessNeverCosts(t *rapid.T) {
	s := plantest.Snapshots(plantest.Limits{Pods: 60, Classes: 8, Nodes: 2, Free: true}).Draw(t, "snapshot")
	search := solve.Solver{Effort: 20_000}
	whole := search.Plan(s)
	fewer := plantest.Clone(s)
	c := rapid.IntRange(0, len(s.Classes)-1).Draw(t, "class")
	gone := s.Classes[c].Pods[0]
	fewer.Classes[c].Pods = fewer.Classes[c].Pods[1:]
	placed := slices.Contains(plantest.PlacedPods(whole), gone)
	if less := search.Plan(fewer); placed && len(less.Unplaced) == len(whole.Unplaced) && less.Bound > whole.Price {
		t.Fatalf("without %s the bound is %d, with it the price is %d", gone, less.Bound, whole.Price)
	}
	if len(s.Offerings) == 0 {
		return
	}
	narrow := plantest.Clone(s)
	last := len(s.Offerings) - 1
	for i := range narrow.Classes {
		narrow.Classes[i].Offerings = slices.DeleteFunc(narrow.Classes[i].Offerings, func(o int) bool { return o == last })
	}
	if less := search.Plan(narrow); len(less.Unplaced) == len(whole.Unplaced) && whole.Bound > less.Price {
		t.Fatalf("with one more offering the bound is %d, without it the price is %d", whole.Bound, less.Price)
	}
}

// nothingLeftThatFits checks that an unplaced pod has no place: no room is left for it, and no machine that could hold it may be launched.
func nothingLeftThatFits(t *rapid.T) {
	s := anything.Draw(t, "snapshot")
	p := solve.Plan(s)
	nodes, launches := plantest.Room(s, p)
	left := map[string]bool{}
	for _, x := range p.Unplaced {
		left[x.Pod] = true
	}
	applied := plantest.Applied(s, p)
	for at, c := range s.Classes {
		if c.Blocked != nil || !slices.ContainsFunc(c.Pods, func(pod string) bool { return left[pod] }) {
			continue
		}
		for _, i := range c.Nodes {
			if len(nodes[i].With(s, at)) > 0 {
				t.Fatalf("%v are left out though node %d has room", c.Pods, i)
			}
		}
		for i, l := range p.Launches {
			if slices.Contains(c.Offerings, l.Offering) && len(launches[i].With(s, at)) > 0 {
				t.Fatalf("%v are left out though launch %d has room", c.Pods, i)
			}
		}
		for _, i := range c.Offerings {
			o := s.Offerings[i]
			r := applied.Pools[o.Pool].Remaining
			if o.Unavailable == nil && s.Pools[o.Pool].Closed == nil && len(plantest.Empty(s, i).With(s, at)) > 0 &&
				r.Nodes >= 1 && r.GPUs >= o.Physical.GPUs && supplied(applied, o) {
				t.Fatalf("%v are left out though %s may be launched", c.Pods, o.InstanceType)
			}
		}
	}
}

// supplied reports whether enough is left of the stocks for a machine of an offering.
func supplied(s planner.Snapshot, o planner.Offering) bool {
	return !slices.ContainsFunc(o.Draws, func(d planner.Draw) bool { return s.Stocks[d.Stock].Left < d.Amount })
}

func TestPlanKeepsEveryRule(t *testing.T)                 { properties.Check(everyRule)(t) }
func TestContainPlansForInvalidSnapshots(t *testing.T)    { properties.Check(plansForInvalid)(t) }
func TestPlanDoesNotDependOnOrderOfSnapshot(t *testing.T) { properties.Check(orderFree)(t) }
func TestAppliedPlanLaunchesNothingMore(t *testing.T)     { properties.Check(replansToNothing)(t) }
func TestAppliedPlanWithStocksLaunchesNothingMore(t *testing.T) {
	properties.Check(replansWithinStocks)(t)
}
func TestBoundIsAtMostOptimum(t *testing.T) { properties.Check(boundHolds)(t) }
func TestBoundOfHeuristicsIsAtMostOptimum(t *testing.T) {
	properties.Check(boundOfMixHolds)(t)
}

func TestBoundIsAtMostOptimumOfManyPods(t *testing.T) {
	properties.Check(boundOfManyPodsHolds)(t)
}

func TestMoreEffortNeverRaisesPrice(t *testing.T) { properties.Check(effortNeverHurts)(t) }
func TestFewerPodsOrMoreOfferingsCostAtMostTheGap(t *testing.T) {
	properties.Check(lessNeverCosts)(t)
}
func TestSmallPlanIsOptimal(t *testing.T)       { properties.Check(smallIsOptimal)(t) }
func TestPlanForOneClassIsOptimal(t *testing.T) { properties.Check(oneClassIsOptimal)(t) }
func TestAdditionalOfferingNeverRaisesPriceOfOneClass(t *testing.T) {
	properties.Check(choiceNeverCosts)(t)
}

func TestPlanLeavesOutOnlyPodsWithoutPlace(t *testing.T) { properties.Check(nothingLeftThatFits)(t) }
func FuzzBuild(f *testing.F)                             { f.Fuzz(rapid.MakeFuzz(everyRule)) }
func FuzzBuildOfNonsense(f *testing.F)                   { f.Fuzz(rapid.MakeFuzz(plansForInvalid)) }
func FuzzBound(f *testing.F)                             { f.Fuzz(rapid.MakeFuzz(boundHolds)) }
func FuzzOrder(f *testing.F)                             { f.Fuzz(rapid.MakeFuzz(orderFree)) }
