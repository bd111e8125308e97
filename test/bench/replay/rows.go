package replay

import (
	"fmt"
	"iter"
	"sync"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/test/bench/replay/peer"
)

// Figures are the measurements of a row. Prices are in micro-dollars per hour.
type Figures struct {
	Offerings string `json:"offerings"`
	Policy    string `json:"policy"`
	// Mean is the price of the machines in the end.
	Mean  planner.MicroUSD `json:"microUSDPerHour"`
	Bound planner.MicroUSD `json:"boundMicroUSDPerHour"`
	Over  float64          `json:"overBoundPercent"`
	// Evictions counts the pods that had to move.
	Evictions int `json:"evictions"`
	// Decision is the longest duration of a single search for a cheaper layout.
	Decision float64 `json:"decisionMilliseconds"`
}

// Row is a line of the table.
type Row struct {
	Figures
	measure func(*Figures) error
}

// Measure runs the row.
func (r Row) Measure() (Figures, error) {
	err := r.measure(&r.Figures)
	if r.Bound > 0 {
		r.Over = 100 * (float64(r.Mean)/float64(r.Bound) - 1)
	}
	return r.Figures, err
}

// restart is what the restart of a pod costs: the default.
const restart = 50_000

// Rows returns the lines of the table: fleets that Karve planned, that lose half of their pods, and that are then consolidated to the end. If the trace is missing, the
// row of openb is left out and skipped is called.
func Rows(trace string, skipped func(string)) iter.Seq[Row] {
	return func(yield func(Row) bool) { rows(trace, skipped, yield) }
}

func rows(trace string, skipped func(string), yield func(Row) bool) {
	types := workload.Types(workload.G4to6, 10)
	for seed := int64(1); seed <= 3; seed++ {
		for _, memory := range []bool{false, true} {
			name := fmt.Sprintf("half of 1,000 ended, seed %d", seed)
			if memory {
				name += ", GPU memory"
			}
			s := workload.Snapshot(workload.Mixed(seed, workload.Mix{Pods: 1000, Shapes: 20, GPUMemory: memory}, types), types)
			if !endings(name+", g4dn-g6e", s, 100+seed, yield) {
				return
			}
		}
	}
	pods, err := workload.Openb(trace)
	if err != nil {
		skipped(fmt.Sprintf("half of openb ended: skipped: %v", err))
		return
	}
	endings("half of openb ended, g4dn-g6e", workload.Snapshot(workload.Shaped(pods, workload.Memory), workload.Types(workload.G4to6, 20)), 101, yield)
}

func endings(name string, s planner.Snapshot, seed int64, yield func(Row) bool) bool {
	start := sync.OnceValue(func() consolidate.Layout {
		return workload.Thinned(s, solve.Plan(s), 0.5, consolidate.Move(restart, 24*time.Hour), seed)
	})
	bound := sync.OnceValue(func() planner.MicroUSD { return consolidate.Plan(solve.Solver{}, start()).Bound })
	for _, x := range []struct {
		policy string
		end    func(consolidate.Layout) (consolidate.Layout, int, time.Duration)
	}{
		{"none", func(l consolidate.Layout) (consolidate.Layout, int, time.Duration) { return l, 0, 0 }},
		{"model of Karpenter's consolidation", func(l consolidate.Layout) (consolidate.Layout, int, time.Duration) {
			k := peer.Karpenter(l)
			return k.Layout, k.Evictions, 0
		}},
		{"Karve", ToTheEnd},
	} {
		row := Row{Figures{Offerings: name, Policy: x.policy}, func(f *Figures) error {
			l, evictions, took := x.end(start())
			for _, m := range l.Machines {
				f.Mean += m.Price
			}
			f.Bound, f.Evictions, f.Decision = bound(), evictions, milliseconds(took)
			return nil
		}}
		if !yield(row) {
			return false
		}
	}
	return true
}

// ToTheEnd takes the steps of cheaper layouts until there are none. It returns the final layout, the number of evicted pods and the longest duration of
// a search.
func ToTheEnd(l consolidate.Layout) (end consolidate.Layout, evictions int, longest time.Duration) {
	for {
		start := time.Now()
		steps := consolidate.Plan(solve.Solver{}, l).Steps
		longest = max(longest, time.Since(start))
		if len(steps) == 0 {
			return l, evictions, longest
		}
		var all consolidate.Step
		for _, s := range steps {
			all.Leave = append(all.Leave, s.Leave...)
			all.Launches, all.Placements = append(all.Launches, s.Launches...), append(all.Placements, s.Placements...)
		}
		for _, i := range all.Leave {
			evictions += len(l.Machines[i].Pods)
		}
		l = plantest.After(l, all)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
