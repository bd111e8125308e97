package solve_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

func TestIdenticalPodsGetCheapestMachines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		pods     int
		request  planner.Resources
		price    planner.MicroUSD
		machines string
	}{
		{"eighty small pods get eight small machines, not one large one", 80, plantest.Request(300, 1024, 1), 4_208_000, "8 g4dn.xlarge"},
		{"eleven small pods get two small machines", 11, plantest.Request(300, 1024, 1), 1_052_000, "2 g4dn.xlarge"},
		{"one pod gets the smallest machine", 1, plantest.Request(300, 1024, 1), 526_000, "1 g4dn.xlarge"},
		{"eleven pods of one CPU get two machines of seven", 11, plantest.Request(1000, 2048, 1), 1_504_000, "2 g4dn.2xlarge"},
		{"forty-one pods of one CPU get a mix of sizes, the fewest machines at that price", 41, plantest.Request(1000, 2048, 1), 4_438_000, "1 g4dn.12xlarge, 1 g4dn.xlarge"},
		{"whole GPUs' worth of replicas spread over single-GPU machines", 3, plantest.Request(300, 1024, 10), 1_578_000, "3 g4dn.xlarge"},
		{"a pod with more replicas than one GPU has gets a multi-GPU machine", 1, plantest.Request(300, 1024, 11), 3_912_000, "1 g4dn.12xlarge"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := plantest.Identical(plantest.Offerings(plantest.G4dn(), 10), c.pods, c.request)
			p := solve.Plan(s)
			if err := check.Plan(s, p); err != nil {
				t.Fatal(err)
			}
			if p.Price != c.price || plantest.Counts(s, p) != c.machines {
				t.Errorf("got %s at %d, want %s at %d", plantest.Counts(s, p), p.Price, c.machines, c.price)
			}
			if p.Bound != p.Price {
				t.Errorf("bound %d, want the price %d: one class is planned exactly", p.Bound, p.Price)
			}
		})
	}
}
