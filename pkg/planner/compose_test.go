package planner_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
)

func TestPlansAreComposedOfKnownLoads(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 7} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 60, 8, seed)
			first, composed := planner.Composed(s)
			if err := planner.Check(s, composed); err != nil {
				t.Fatal(err)
			}
			if best := planner.Build(s).Price; composed.Price > best || composed.Price >= first.Price {
				t.Errorf("costs %d, the first plan %d, the best that is known %d", composed.Price, first.Price, best)
			}
		})
	}
}
