package solve_test

import (
	"fmt"
	"slices"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// owned adds to a snapshot reserved slots for a third of the machines of a plan without them, and a savings plan for a fifth of its price, which lowers the price of
// all offerings on demand by 45 %.
func owned(s planner.Snapshot) planner.Snapshot {
	p := solve.Plan(s)
	listed := slices.Clone(s.Offerings)
	slots := map[int]int64{}
	for _, l := range p.Launches {
		slots[l.Offering]++
	}
	plan := planner.Stock{Name: "savings-plan", Left: int64(p.Price) / 5}
	for i := range listed {
		if n := (slots[i] + 2) / 3; n > 0 {
			s.Stocks = append(s.Stocks, planner.Stock{Name: fmt.Sprintf("cr-%04d", i), Left: n})
			o := listed[i]
			o.Price, o.CapacityType, o.Draws = max(1, o.Price/10_000_000), "reserved", []planner.Draw{{Stock: len(s.Stocks) - 1, Amount: 1}}
			s.Offerings = append(s.Offerings, o)
		}
	}
	s.Stocks = append(s.Stocks, plan)
	for _, o := range listed {
		if o.CapacityType != "spot" {
			o.Price = o.Price * 55 / 100
			o.Draws = []planner.Draw{{Stock: len(s.Stocks) - 1, Amount: int64(o.Price)}}
			s.Offerings = append(s.Offerings, o)
		}
	}
	s.Classes = slices.Clone(s.Classes)
	for k := range s.Classes {
		for i := len(listed); i < len(s.Offerings); i++ {
			s.Classes[k].Offerings = append(slices.Clip(s.Classes[k].Offerings), i)
		}
	}
	return s
}

func TestPlansWithStocksAreNearTheirBounds(t *testing.T) {
	t.Parallel()
	zones := plantest.Zones()
	for name, tc := range map[string]struct {
		s   planner.Snapshot
		gap float64 // in percent
	}{
		"few machines":      {plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 60, 8, 1), 1},
		"1000 pods":         {plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 1000, 20, 1), 1},
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
			s := owned(tc.s)
			p := solve.Plan(s)
			if err := check.Plan(s, p); err != nil {
				t.Error(err)
			}
			without := solve.Plan(tc.s)
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
