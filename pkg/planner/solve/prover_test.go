package solve_test

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// TestPlanIsTheSameOnOneCore checks that the primal and the dual search yield the same plan on two cores, where they run concurrently, and on one core.
func TestPlanIsTheSameOnOneCore(t *testing.T) {
	offerings := plantest.Offerings(plantest.G4dn(), 10)
	for name, s := range map[string]planner.Snapshot{
		"very few machines": plantest.Mixed(offerings, 50, 5, 1),
		"few machines":      plantest.Mixed(offerings, 200, 8, 1),
		"many machines":     plantest.Mixed(offerings, 1000, 12, 1),
		"many shapes":       plantest.Mixed(offerings, 1000, 90, 1),
		"few pods a shape":  distinct(150),
	} {
		search := solve.Solver{Effort: 150_000}
		cores := runtime.GOMAXPROCS(2)
		two := search.Plan(s)
		runtime.GOMAXPROCS(1)
		one := search.Plan(s)
		runtime.GOMAXPROCS(cores)
		if diff := cmp.Diff(two, one); diff != "" {
			t.Errorf("%s: two cores plan -, one +:\n%s", name, diff)
		}
	}
}
