package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

const (
	// controllerBudget is the chart's planBudget. controllerLaunches is how many machines the controller launches at a time before its first launch
	// succeeds. Launching so few at a time is the hardest case.
	controllerBudget   = defaultBudget
	controllerLaunches = 10
	// manyRounds limits how often a plan of hundreds of machines is recomputed: each round launches at least 1/manyRounds of the remaining launches.
	manyRounds = 5
	// billPods is the largest number of pods for which a plan is carried out. Larger plans have thousands of machines.
	billPods = 10_000
	// billedPods is how many pods of a row are planned before its bill is final. A row of small snapshots thus covers several of them.
	billedPods = 500
)

// bills sums the prices of the first plans, and of everything that was launched in the end.
type bills struct{ first, final planner.MicroUSD }

func (b bills) over() *float64 {
	if b.first == 0 {
		return nil
	}
	return new(100 * (float64(b.final)/float64(b.first) - 1))
}

// carryOut launches a plan atATime machines at a time and replans after each round, as the controller does. The search is limited only by time. Between
// rounds it keeps only what the NodeClaims record, as after a restart.
func (b *bills) carryOut(s planner.Snapshot, atATime int) error {
	search := func(s planner.Snapshot) solve.Solver {
		start, budget := time.Now(), controllerBudget*time.Duration(solve.Patience(s))
		return solve.Solver{Stop: func() bool { return time.Since(start) >= budget }}
	}
	plan := search(s).Plan(s)
	b.first += plan.Price
	for rounds := len(plan.Launches); len(plan.Launches) > 0; rounds-- {
		if rounds < 0 {
			return fmt.Errorf("machines are launched without end")
		}
		now := plan
		n := min(max(atATime, len(plan.Launches)/manyRounds), len(plan.Launches))
		now.Launches = plan.Launches[:n]
		earlier := planner.Plan{Placements: append([]planner.Placement{}, plan.Placements...), Launches: plan.Launches[n:]}
		first := len(s.Nodes)
		s = plantest.Applied(s, now)
		for i, l := range now.Launches {
			s.Nodes[first+i].Name = fmt.Sprintf("launched-%06d", first+i)
			b.final += s.Offerings[l.Offering].Price
			earlier.Placements = append(earlier.Placements, planner.Placement{Node: first + i, Pods: l.Pods})
		}
		plan = search(s).Resume(s, remembered(s, earlier))
		if err := check.Plan(s, plan); err != nil {
			return fmt.Errorf("a later plan breaks a rule: %w", err)
		}
	}
	return nil
}

// remembered returns a plan as the NodeClaims record it: how many pods of each class a machine is for, but not which pods.
func remembered(s planner.Snapshot, p planner.Plan) planner.Plan {
	class, next := map[string]int{}, make([]int, len(s.Classes))
	for c := range s.Classes {
		for _, pod := range s.Classes[c].Pods {
			class[pod] = c
		}
	}
	others := func(pods []string) []string {
		out := make([]string, len(pods))
		for i, pod := range pods {
			c := class[pod]
			out[i] = s.Classes[c].Pods[next[c]]
			next[c]++
		}
		return out
	}
	var out planner.Plan
	for _, x := range p.Placements {
		out.Placements = append(out.Placements, planner.Placement{Node: x.Node, Pods: others(x.Pods)})
	}
	for _, l := range p.Launches {
		out.Launches = append(out.Launches, planner.Launch{Offering: l.Offering, Pods: others(l.Pods), Alternatives: l.Alternatives})
	}
	return out
}

// busy keeps all processors busy until end is called.
func busy() (end func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for n := 0; !over.Load(); n++ {
				_ = n
			}
		})
	}
	return func() {
		over.Store(true)
		wg.Wait()
	}
}

// bill carries out the plans of a row's first snapshots: all machines at once, and ten at a time on a busy machine.
func (r row) bill(f *figures) error {
	var atOnce, byTen bills
	n := 0
	for s := range r.snapshots {
		if podsOf(s) > billPods || r.goal.proved || r.owned {
			return nil
		}
		if err := atOnce.carryOut(s, len(s.Classes)*billPods); err != nil {
			return err
		}
		end := busy()
		err := byTen.carryOut(s, controllerLaunches)
		end()
		if err != nil {
			return err
		}
		if n += podsOf(s); n >= billedPods {
			break
		}
	}
	f.BillAtOnce, f.BillByTen = atOnce.over(), byTen.over()
	return nil
}
