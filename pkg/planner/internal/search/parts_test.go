package search_test

import (
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/internal/search"
	"karve.sh/karve/pkg/planner/plantest"
)

// tiny snapshots are small enough for brute force.
var tiny = plantest.Snapshots(plantest.Limits{Pods: 6, Classes: 4, Nodes: 2})

// partsHold checks that the search for many shapes keeps every rule, places as many pods as the plan that it starts from at no higher price, and gives a bound
// that holds.
func partsHold(t *rapid.T) {
	s := tiny.Draw(t, "snapshot")
	first, p := search.ByParts(s, 20_000)
	if err := check.Plan(s, p); err != nil {
		t.Fatal(err)
	}
	if len(p.Unplaced) > len(first.Unplaced) || len(p.Unplaced) == len(first.Unplaced) && p.Price > first.Price {
		t.Fatalf("leaves out %d pods at %d, the plan before %d at %d", len(p.Unplaced), p.Price, len(first.Unplaced), first.Price)
	}
	best, ok := plantest.Optimum(s, plantest.PlacedPods(p))
	if !ok || p.Bound > best || best > p.Price {
		t.Fatalf("bound %d, optimum %d (found: %t), price %d: want them in this order", p.Bound, best, ok, p.Price)
	}
}

// linearValuesAreFeasible checks that no load is worth more than its machine at worths that come from prices of resources.
func linearValuesAreFeasible(t *rapid.T) {
	worth, price, ok := search.DearestAtLinearValues(tiny.Draw(t, "snapshot"), rapid.IntRange(1, 60).Draw(t, "rounds"))
	// The worths are sums in floating point.
	if ok && worth > price+price/1_000_000_000+1 {
		t.Fatalf("a load is worth %d on a machine for %d", worth, price)
	}
}

func TestPlanInPartsAndItsBoundHold(t *testing.T) { properties.Check(partsHold)(t) }
func TestNoLoadIsWorthMoreThanItsMachineAtLinearValues(t *testing.T) {
	properties.Check(linearValuesAreFeasible)(t)
}
func FuzzParts(f *testing.F) { f.Fuzz(rapid.MakeFuzz(partsHold)) }
