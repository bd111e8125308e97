package disruption

import (
	"testing"

	"karve.sh/karve/pkg/planner"
)

func TestFreeSlotIsAnImprovement(t *testing.T) {
	t.Parallel()
	with := func(left int64) offers {
		return offersOf(planner.Snapshot{
			Pools: []planner.Pool{{Name: "gpu"}}, Stocks: []planner.Stock{{Name: "cr-1", Left: left}},
			Offerings: []planner.Offering{
				{InstanceType: "p5.48xlarge", Zone: "a", CapacityType: "on-demand", Price: 98_000_000},
				{InstanceType: "p5.48xlarge", Zone: "a", CapacityType: "reserved", Price: 9, Draws: []planner.Draw{{Amount: 1}}},
			},
		})
	}
	for name, c := range map[string]struct {
		before, now int64
		want        bool
	}{
		"a slot becomes free": {0, 1, true}, "all are taken": {1, 0, false}, "none was free": {0, 0, false}, "another becomes free": {1, 2, false},
	} {
		if got := with(c.now).improves(with(c.before)); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
