package solve_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
)

func TestPlansWithStocksAreNearTheirBounds(t *testing.T) {
	t.Parallel()
	zones := plantest.Zones()
	for name, tc := range map[string]struct {
		s   planner.Snapshot
		gap float64 // in percent
	}{
		"few machines":      {plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 60, 8, 1), 1},
		"1000 pods":         {plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 1000, 20, 1), 1.5},
		"1000 pods on spot": {plantest.Mixed(plantest.SpotOfferings(plantest.G4dn(), zones, 10), 1000, 20, 2), 1},
		"many shapes":       {plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 600, 70, 3), 3},
		"shapes of one pod": {plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 120, 100, 4), 10},
		"identical pods":    {plantest.Identical(plantest.Offerings(plantest.G4dn(), 10), 2000, plantest.Request(300, 1024, 1)), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && len(tc.s.Classes) > 50 {
				t.Skip("takes long")
			}
			without := solve.Plan(tc.s)
			s := workload.Owned(tc.s, without)
			p := solve.Plan(s)
			if err := check.Plan(s, p); err != nil {
				t.Error(err)
			}
			gap := 100 * float64(p.Price-p.Bound) / float64(max(1, p.Price))
			t.Logf("price %d, bound %d, gap %.2f %%, %d machines; without stocks price %d, bound %d", p.Price, p.Bound, gap, len(p.Launches), without.Price, without.Bound)
			if gap > tc.gap || len(p.Unplaced) > 0 {
				t.Errorf("the gap is %.2f %%, %d pods are not placed", gap, len(p.Unplaced))
			}
		})
	}
}

func TestFreeSlotsAreFilledBeforeMachinesAreBought(t *testing.T) {
	t.Parallel()
	s := plantest.Identical(plantest.Offerings(plantest.G4dn()[:1], 10), 40, plantest.Request(700, 1024, 1))
	slot := s.Offerings[0]
	slot.Price, slot.CapacityType, slot.Draws = 1, "reserved", []planner.Draw{{Amount: 1}}
	s.Stocks = []planner.Stock{{Name: "cr-0123", Left: 3}}
	s.Offerings = append(s.Offerings, slot)
	s.Classes[0].Offerings = []int{0, 1}
	p := solve.Plan(s)
	free := 0
	for _, l := range p.Launches {
		free += l.Offering
	}
	if len(p.Launches) != 8 || free != 3 || p.Price != p.Bound || p.Price != 5*526_000+3 {
		t.Errorf("%d machines, %d of them in free slots, price %d and bound %d", len(p.Launches), free, p.Price, p.Bound)
	}
}

func TestRefusalNamesTheStock(t *testing.T) {
	t.Parallel()
	s := plantest.Identical(plantest.Offerings(plantest.G4dn()[:1], 10), 6, plantest.Request(3000, 1024, 1))
	s.Offerings[0].Draws = []planner.Draw{{Amount: 1}}
	s.Stocks = []planner.Stock{{Name: "cr-0123", Left: 4}}
	p := solve.Plan(s)
	if len(p.Launches) != 4 || len(p.Unplaced) != 2 {
		t.Fatalf("%d launches, %d pods left out", len(p.Launches), len(p.Unplaced))
	}
	want := planner.Refusal{Reason: planner.ReasonUnavailable, Message: "nothing is left of cr-0123 for another g4dn.xlarge: wait, or allow other machines in the NodePool"}
	if got := p.Unplaced[0].Refusal; got != want {
		t.Errorf("the refusal is %v, want %v", got, want)
	}
}
