package solve_test

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// fewWithMemory returns fewLarge with machines that have one GPU, where each pod states a share of its memory.
func fewWithMemory() planner.Snapshot {
	s := fewLarge()
	var single []planner.Offering
	for _, o := range s.Offerings {
		if o.Free.Replicas == 10 {
			o.GPUs = []planner.GPU{{Replicas: 10, MemoryBytes: 16_000 * plantest.Mi}}
			single = append(single, o)
		}
	}
	s.Offerings = single
	for i := range s.Classes {
		c := &s.Classes[i]
		c.Offerings, c.GPUMemoryBytes = []int{0, 1, 2, 3, 4}, 1500*plantest.Mi
	}
	return s
}

func TestIntegerCoversProveOptimalPlanWithDeviceMemory(t *testing.T) {
	t.Parallel()
	s := fewWithMemory()
	p := solve.Plan(s)
	const least = 11_112_000
	if p.Price != least || p.Bound != least {
		t.Errorf("costs %d for %s, the bound is %d, the optimum %d", p.Price, plantest.Counts(s, p), p.Bound, least)
	}
}

func TestIntegerCoverBoundHoldsForCheaperPlans(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 30, 6, seed)
			for i := range s.Classes {
				s.Classes[i].GPUMemoryBytes = int64(1+i) * 1100 * plantest.Mi
			}
			less, more := solve.Solver{Effort: 60_000}.Plan(s), solve.Solver{Effort: 600_000}.Plan(s)
			if less.Bound > more.Price || more.Bound > more.Price {
				t.Errorf("the bounds are %d and %d, a plan costs %d", less.Bound, more.Bound, more.Price)
			}
		})
	}
}
