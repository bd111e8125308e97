package solve_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// stopAfter returns a stop function that ends a search after the given number of calls.
func stopAfter(asks int) func() bool {
	return func() bool { asks--; return asks < 0 }
}

// inSteps plans repeatedly and launches a few machines of each plan. Each plan has its own stop function. It returns the first and the last plan, and the total
// cost of all machines.
func inSteps(t rapid.TB, s planner.Snapshot, atATime int, stop func() func() bool) (first, plan planner.Plan, bill planner.MicroUSD) {
	t.Helper()
	first = solve.Solver{Stop: stop()}.Plan(s)
	plan = first
	for range len(first.Launches) + 1 {
		if len(plan.Launches) == 0 {
			return first, plan, bill
		}
		now, later := plan, plan
		n := min(atATime, len(plan.Launches))
		now.Launches, later.Launches = plan.Launches[:n], plan.Launches[n:]
		nodes := len(s.Nodes)
		s = plantest.Applied(s, now)
		later.Placements = slices.Clone(plan.Placements)
		for i, l := range now.Launches {
			s.Nodes[nodes+i].Name = fmt.Sprintf("launched-%05d", nodes+i)
			bill += s.Offerings[l.Offering].Price
			later.Placements = append(later.Placements, planner.Placement{Node: nodes + i, Pods: l.Pods})
		}
		before := plan
		plan = solve.Solver{Stop: stop()}.Resume(s, later)
		if err := check.Plan(s, plan); err != nil {
			t.Fatal(err)
		}
		if len(plan.Unplaced) > len(before.Unplaced) {
			t.Fatalf("%d pods have no place, %d had none before", len(plan.Unplaced), len(before.Unplaced))
		}
	}
	t.Fatalf("machines are launched again and again after %v", first)
	return first, plan, bill
}

// atOnce returns a stop function that ends a search immediately.
func atOnce() func() bool { return stopAfter(0) }

// keptWithoutTime checks that, without any search time, the remaining launches are exactly those of the first plan.
func keptWithoutTime(t *rapid.T) {
	s := plantest.Snapshots(plantest.Limits{Pods: 60, Classes: 8, Nodes: 3}).Draw(t, "snapshot")
	first, _, bill := inSteps(t, s, rapid.IntRange(1, 5).Draw(t, "at a time"), atOnce)
	if bill != first.Price {
		t.Fatalf("the machines cost %d, the first plan %d", bill, first.Price)
	}
}

// neverDearer checks that the machines cost no more than the first plan, whenever the searches end.
func neverDearer(t *rapid.T) {
	s := plantest.Snapshots(plantest.Limits{Pods: 60, Classes: 8, Nodes: 3}).Draw(t, "snapshot")
	clock := func() func() bool { return stopAfter(rapid.IntRange(0, 300).Draw(t, "asks")) }
	first, last, bill := inSteps(t, s, rapid.IntRange(1, 5).Draw(t, "at a time"), clock)
	if len(last.Unplaced) == len(first.Unplaced) && bill > first.Price {
		t.Fatalf("the machines cost %d, the first plan %d", bill, first.Price)
	}
}

// keptUnderRules checks the same with all rules of the scheduler.
func keptUnderRules(t *rapid.T) {
	s := anyRules.Draw(t, "snapshot")
	first, last, bill := inSteps(t, s, rapid.IntRange(1, 3).Draw(t, "at a time"), atOnce)
	if len(last.Unplaced) == len(first.Unplaced) && bill > first.Price {
		t.Fatalf("the machines cost %d, the first plan %d%s", bill, first.Price, plantest.Outline(s))
	}
}

// anythingEarlier checks that, whatever the earlier plan is, the plan keeps every rule and places as many pods as without it.
func anythingEarlier(t *rapid.T) {
	s, other := anyRules.Draw(t, "snapshot"), anyRules.Draw(t, "other")
	earlier := solve.Plan(other)
	if rapid.Bool().Draw(t, "nonsense") {
		earlier.Launches = append(earlier.Launches, planner.Launch{Offering: -1}, planner.Launch{Offering: 99, Pods: []string{"x"}, Alternatives: []int{-3}})
		earlier.Placements = append(earlier.Placements, planner.Placement{Node: -1}, planner.Placement{Node: 99}, planner.Placement{Pods: []string{"x", "x"}})
	}
	p := solve.Solver{}.Resume(s, earlier)
	if err := check.Plan(s, p); err != nil {
		t.Fatalf("%v: %v%s", err, p, plantest.Outline(s))
	}
	if alone := solve.Plan(s); len(p.Unplaced) > len(alone.Unplaced) {
		t.Fatalf("%d pods have no place, %d without an earlier plan", len(p.Unplaced), len(alone.Unplaced))
	}
}

// frozenStay checks that pods stay on frozen nodes, however many others are planned again.
func frozenStay(t *rapid.T) {
	s := plantest.Snapshots(plantest.Limits{Pods: 60, Classes: 8, Nodes: 3}).Draw(t, "snapshot")
	s.Rules = nil
	first := solve.Plan(s)
	nodes := len(s.Nodes)
	s = plantest.Applied(s, first)
	frozen := make([]bool, len(s.Nodes))
	earlier := planner.Plan{Placements: slices.Clone(first.Placements)}
	for i, l := range first.Launches {
		s.Nodes[nodes+i].Name = fmt.Sprintf("launched-%05d", i)
		earlier.Placements = append(earlier.Placements, planner.Placement{Node: nodes + i, Pods: l.Pods})
	}
	for i, p := range earlier.Placements {
		if frozen[p.Node] = rapid.Bool().Draw(t, "frozen"); rapid.Bool().Draw(t, "displaced") {
			earlier.Placements[i].Pods = p.Pods[1:] // The first pod lost its seat.
		}
	}
	p := solve.Solver{Frozen: frozen}.Resume(s, earlier)
	if err := check.Plan(s, p); err != nil {
		t.Fatalf("%v: %v%s", err, p, plantest.Outline(s))
	}
	on := map[string]int{}
	for _, x := range p.Placements {
		for _, pod := range x.Pods {
			on[pod] = x.Node
		}
	}
	for _, x := range earlier.Placements {
		for _, pod := range x.Pods {
			if node, placed := on[pod]; frozen[x.Node] && (!placed || node != x.Node) {
				t.Fatalf("pod %s left frozen node %d%s", pod, x.Node, plantest.Outline(s))
			}
		}
	}
}

func TestPodsStayOnFrozenNodes(t *testing.T) { properties.Check(frozenStay)(t) }

// TestSeatsAreExchangedOnlyOnNodesThatAreNotFrozen has a machine with two small pods, and a large pod without a place. It is cheapest to give the large pod
// their place.
func TestSeatsAreExchangedOnlyOnNodesThatAreNotFrozen(t *testing.T) {
	t.Parallel()
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("a")}}
	for i, price := range []planner.MicroUSD{1000, 100} {
		s.Offerings = append(s.Offerings, planner.Offering{
			InstanceType: fmt.Sprint("type-", i), Price: price, Free: planner.Resources{MilliCPU: []int64{4, 2}[i], Pods: 10}, Physical: planner.Physical{Nodes: 1},
		})
	}
	s.Nodes = []planner.Node{{Name: "starting", Free: s.Offerings[0].Free}}
	s.Classes = []planner.Class{
		plantest.Class(s, "large", 1, planner.Resources{MilliCPU: 4, Pods: 1}), plantest.Class(s, "small", 2, planner.Resources{MilliCPU: 1, Pods: 1}),
	}
	earlier := planner.Plan{Placements: []planner.Placement{{Node: 0, Pods: s.Classes[1].Pods}}}
	for _, c := range []struct {
		frozen []bool
		price  planner.MicroUSD
	}{{nil, 100}, {[]bool{false}, 100}, {[]bool{true}, 1000}} {
		p := solve.Solver{Frozen: c.frozen}.Resume(s, earlier)
		if err := check.Plan(s, p); err != nil || p.Price != c.price || len(p.Unplaced) > 0 {
			t.Errorf("frozen %v: the launches cost %d, want %d (%v): %v", c.frozen, p.Price, c.price, err, p)
		}
	}
}

func TestPlanIsKeptWithoutSearchTime(t *testing.T)          { properties.Check(keptWithoutTime)(t) }
func TestPlanCostsNoMoreWhereverSearchStops(t *testing.T)   { properties.Check(neverDearer)(t) }
func TestPlanWithRulesIsKeptWithoutSearchTime(t *testing.T) { properties.Check(keptUnderRules)(t) }
func TestPlanIsValidForAnyEarlierPlan(t *testing.T)         { properties.Check(anythingEarlier)(t) }

// The first plan has all the time that it needs. Later ones are cut off at different points or immediately, as on a busy machine.
func TestThousandPodsLaunchedInStepsCostWhatFirstPlanDoes(t *testing.T) {
	t.Parallel()
	s := plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 1000, 20, 7)
	for _, atATime := range []int{10, 1000} {
		for what, later := range map[string]func(asks int) int{"little time": func(n int) int { return n * 37 % 120 }, "no time": func(int) int { return 0 }} {
			n := 0
			clock := func() func() bool {
				if n++; n == 1 {
					return stopAfter(2000)
				}
				return stopAfter(later(n))
			}
			if first, _, bill := inSteps(t, s, atATime, clock); first.Price == 0 || bill > first.Price || later(1) == 0 && bill != first.Price {
				t.Errorf("%d at a time with %s later, the machines cost %d, the first plan %d", atATime, what, bill, first.Price)
			}
		}
	}
}
