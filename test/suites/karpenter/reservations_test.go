package karpenter_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/test/harness/karpenter"
)

// The rounds of Karpenter's provisioner use each slot once, and place all pods.
func TestKarpenterFillsReservationsInRounds(t *testing.T) {
	t.Parallel()
	types := plantest.G4dn()
	s := plantest.Mixed(plantest.Offerings(types[:4], 10), 40, 4, 1)
	without := solve.Plan(s)
	owned := workload.Owned(s, without)
	p, rounds, _, err := karpenter.PlanWithReservations(t.Context(), owned)
	if err != nil {
		t.Fatal(err)
	}
	if err := check.Plan(owned, p); err != nil {
		t.Error(err)
	}
	slots, taken := int64(0), int64(0)
	for _, x := range owned.Stocks[:len(owned.Stocks)-1] {
		slots += x.Left
	}
	for _, l := range p.Launches {
		if owned.Offerings[l.Offering].CapacityType == "reserved" {
			taken++
		}
	}
	t.Logf("%d rounds, %d of %d slots, %d machines, $%.2f", rounds, taken, slots, len(p.Launches), float64(workload.Bill(owned, p))/1e6)
	if taken == 0 || taken > slots || len(p.Unplaced) > 0 {
		t.Errorf("%d of %d slots are taken, and %d pods have no place", taken, slots, len(p.Unplaced))
	}
}

func TestBillIsWhatReservationsAndPlansLeave(t *testing.T) {
	t.Parallel()
	s := planner.Snapshot{
		Stocks: []planner.Stock{{Name: "cr-0000", Left: 1}, {Name: "savings-plan", Left: 550_000}},
		Offerings: []planner.Offering{
			{CapacityType: "on-demand", Price: 2_000_000},
			{CapacityType: "reserved", Price: 20, ListPrice: 2_000_000, Draws: []planner.Draw{{Stock: 0, Amount: 1}}},
			{CapacityType: "on-demand", Price: 1_100_000, ListPrice: 2_000_000, Draws: []planner.Draw{{Stock: 1, Amount: 1_100_000}}},
		},
	}
	for name, tc := range map[string]struct {
		offerings []int
		want      planner.MicroUSD
	}{
		"nothing runs, and the commitment is paid": {nil, 550_000},
		"slots are paid anyway":                    {[]int{1}, 550_000},
		"half of a machine is within the plan":     {[]int{0}, 550_000 + 1_000_000},
		"the plan does not say what is covered":    {[]int{2}, 550_000 + 1_000_000},
		"what runs beyond it costs the list price": {[]int{0, 1, 2}, 550_000 + 3_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p planner.Plan
			for _, i := range tc.offerings {
				p.Launches = append(p.Launches, planner.Launch{Offering: i})
			}
			if got := workload.Bill(s, p); got != tc.want {
				t.Errorf("the bill is %d, want %d", got, tc.want)
			}
		})
	}
}
