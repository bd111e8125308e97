package search_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/internal/search"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

func TestComposedPlanIsCheaperThanFirstPlan(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 7} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 60, 8, seed)
			first, composed := search.Composed(s)
			if err := check.Plan(s, composed); err != nil {
				t.Fatal(err)
			}
			if best := solve.Plan(s).Price; composed.Price > best || composed.Price >= first.Price {
				t.Errorf("costs %d, the first plan %d, the best that is known %d", composed.Price, first.Price, best)
			}
		})
	}
}
