package replay

import (
	"fmt"
	"iter"
	"sync"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/replay"
	"karve.sh/karve/test/bench/replay/peer"
)

// Figures are the measurements of a row. Prices are in micro-dollars per hour.
type Figures struct {
	Offerings string `json:"offerings"`
	Scheduler string `json:"scheduler"`
	Policy    string `json:"policy"`
	// Move is the cost of a move, 0 if the policy has none. Window is how many seconds pods wait for room before machines are launched. Waited is the
	// average number of seconds that they did.
	Move   planner.MicroUSD `json:"moveMicroUSDPerHour"`
	Window int              `json:"windowSeconds"`
	Waited float64          `json:"waitedSeconds"`
	// Mean is the average price of a replay's machines. For a fleet that has lost pods, it is the final price.
	Mean  planner.MicroUSD `json:"meanMicroUSDPerHour"`
	Bound planner.MicroUSD `json:"boundMicroUSDPerHour"`
	Over  float64          `json:"overBoundPercent"`
	// Evictions counts the pods that had to move.
	Evictions int `json:"evictions"`
	Launched  int `json:"nodesLaunched"`
	// Decision and Plan are the longest durations of a single search for a cheaper layout and a single plan.
	Decision        float64 `json:"decisionMilliseconds"`
	Plan            float64 `json:"planMilliseconds"`
	EventsPerSecond float64 `json:"eventsPerSecond"`
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

// The parameters of the replays.
const (
	effort        = 30_000
	effortOfBound = 1_000_000 // per sample; below half of it the bound of g4dn to g6e is weak
	defaultMove   = 50_000
	every         = time.Minute
	window        = 90 * time.Second
)

// Rows returns the lines of the table. A move of the trace costs more than the default of the API: its pods come and go a hundred times as fast as in
// reality, so a move must pay off in less time. If the trace is missing, the openb rows are left out and skipped is called.
func Rows(trace string, skipped func(string)) iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for _, offerings := range []struct {
			name     string
			families []string
			move     planner.MicroUSD
		}{{"g4dn", workload.G4dn, 180_000}, {"g4dn-g6e", workload.G4to6, 140_000}} {
			t, err := Openb(trace, 10_200_000, 100, workload.Types(offerings.families, 20))
			if err != nil {
				skipped(fmt.Sprintf("openb, %s: skipped: %v", offerings.name, err))
			} else if !rows(t, "openb, "+offerings.name, offerings.move, yield) {
				return
			}
		}
		halved(trace, skipped, yield)
	}
}

// policy is how machines that are not full are handled, and how long pods wait for room before machines are launched.
type policy struct {
	name string
	// move is Karve's cost of a move, 0 for other policies.
	move planner.MicroUSD
	replay.Setup
}

// karve returns Karve's policy with the given cost of a move. It launches at once, or after a window.
func karve(move planner.MicroUSD, window time.Duration) policy {
	k := replay.Karve{Search: solve.Solver{Effort: effort}, Move: move, Percent: 100, Steered: true}
	return policy{karveName(move), move, replay.Setup{Provision: k.Search.Plan, Window: window, Consolidate: k.Consolidate, Every: every}}
}

func karveName(move planner.MicroUSD) string {
	return fmt.Sprintf("Karve, $%.2f a move", float64(move)/1e6)
}

// karpenter returns the policy of the model of Karpenter's consolidation.
func karpenter(window time.Duration) policy {
	return policy{"model of Karpenter's consolidation", 0, replay.Setup{Provision: firstfit.Plan, Window: window, Consolidate: replay.Karpenter, Every: every}}
}

// rows yields the rows of a trace: no consolidation, the model of Karpenter's and Karve's, for each model of the scheduler. Each of them launches at
// once, and after a window. More rows vary the cost of a move.
func rows(t replay.Trace, name string, move planner.MicroUSD, yield func(Row) bool) bool {
	bound := sync.OnceValue(func() planner.MicroUSD { return replay.Bound(&t, solve.Solver{Effort: effortOfBound}) })
	for _, scheduler := range []replay.Scheduler{replay.FirstFit, replay.LeastAllocated, replay.MostAllocated} {
		policies := []policy{karpenter(0), karpenter(window), karve(move, 0), karve(move, window)}
		if scheduler.Name == replay.FirstFit.Name {
			policies = append([]policy{
				{"none, Karpenter's packing", 0, replay.Setup{Provision: firstfit.Plan}},
				{"none, Karve's plans", 0, replay.Setup{Provision: solve.Solver{Effort: effort}.Plan}},
			}, policies...)
			for _, other := range []planner.MicroUSD{100_000, 200_000, 300_000} {
				policies = append(policies, karve(other, 0), karve(other, window))
			}
		}
		for _, x := range policies {
			x.Scheduler = scheduler
			f := Figures{Offerings: name, Scheduler: scheduler.Name, Policy: x.name, Move: x.move, Window: int(x.Window.Seconds())}
			if x.Window > 0 {
				f.Policy += fmt.Sprintf(", launching after %d s", f.Window)
			}
			if !yield(Row{f, func(f *Figures) error {
				r, err := replay.Run(&t, x.Setup)
				f.Mean, f.Bound, f.Evictions, f.Launched, f.Waited = r.Mean, bound(), r.Evictions, r.Launched, r.Waited.Seconds()
				f.Decision, f.Plan, f.EventsPerSecond = milliseconds(r.Decision), milliseconds(r.Planning), float64(r.Events)/r.Took.Seconds()
				return err
			}}) {
				return false
			}
		}
	}
	return true
}

// halved yields the rows of fleets that Karve planned, that lose half of their pods, and that are then consolidated to the end.
func halved(trace string, skipped func(string), yield func(Row) bool) bool {
	types := workload.Types(workload.G4to6, 10)
	for seed := int64(1); seed <= 3; seed++ {
		for _, memory := range []bool{false, true} {
			name := fmt.Sprintf("half of 1,000 ended, seed %d", seed)
			if memory {
				name += ", GPU memory"
			}
			s := workload.Snapshot(workload.Mixed(seed, workload.Mix{Pods: 1000, Shapes: 20, GPUMemory: memory}, types), types)
			if !endings(name+", g4dn-g6e", s, 100+seed, yield) {
				return false
			}
		}
	}
	pods, err := workload.Openb(trace)
	if err != nil {
		skipped(fmt.Sprintf("half of openb ended: skipped: %v", err))
		return true
	}
	return endings("half of openb ended, g4dn-g6e", workload.Snapshot(workload.Shaped(pods, workload.Memory), workload.Types(workload.G4to6, 20)), 101, yield)
}

func endings(name string, s planner.Snapshot, seed int64, yield func(Row) bool) bool {
	start := sync.OnceValue(func() consolidate.Layout {
		l := workload.Thinned(s, solve.Plan(s), 0.5, defaultMove, seed)
		l.NearEnough = v1alpha1.DefaultNearEnoughPercent
		return l
	})
	bound := sync.OnceValue(func() planner.MicroUSD { return consolidate.Plan(solve.Solver{}, start()).Bound })
	for _, x := range []struct {
		policy string
		move   planner.MicroUSD
		end    func(consolidate.Layout) (consolidate.Layout, int, time.Duration)
	}{
		{"none", 0, func(l consolidate.Layout) (consolidate.Layout, int, time.Duration) { return l, 0, 0 }},
		{"model of Karpenter's consolidation", 0, func(l consolidate.Layout) (consolidate.Layout, int, time.Duration) {
			k := peer.Karpenter(l)
			return k.Layout, k.Evictions, 0
		}},
		{karveName(defaultMove), defaultMove, ToTheEnd},
	} {
		row := Row{Figures{Offerings: name, Scheduler: "as planned", Policy: x.policy, Move: x.move}, func(f *Figures) error {
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
