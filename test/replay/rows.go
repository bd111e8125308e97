package replay

import (
	"fmt"
	"iter"
	"sync"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/test/bench/workload"
	"karve.sh/karve/test/replay/peer"
)

// Figures are what was measured of a row. Money is in micro-dollars an hour.
type Figures struct {
	Offerings string `json:"offerings"`
	Scheduler string `json:"scheduler"`
	Policy    string `json:"policy"`
	Steering  bool   `json:"steering"`
	// Mean is what the machines of a replay cost on average; what those of a fleet that has lost pods cost in the end.
	Mean  planner.MicroUSD `json:"meanMicroUSDPerHour"`
	Bound planner.MicroUSD `json:"boundMicroUSDPerHour"`
	Over  float64          `json:"overBoundPercent"`
	// Evictions are pods that had to move.
	Evictions int `json:"evictions"`
	Launched  int `json:"nodesLaunched"`
	// Decision and Plan are the longest that one look for a cheaper layout, one plan took.
	Decision        float64 `json:"decisionMilliseconds"`
	Plan            float64 `json:"planMilliseconds"`
	EventsPerSecond float64 `json:"eventsPerSecond"`
}

// Row is a line of the table.
type Row struct {
	Figures
	measure func(*Figures) error
}

// Measure does what the row is about.
func (r Row) Measure() (Figures, error) {
	err := r.measure(&r.Figures)
	if r.Bound > 0 {
		r.Over = 100 * (float64(r.Mean)/float64(r.Bound) - 1)
	}
	return r.Figures, err
}

// What the rows are replayed with. Karve's move is dearer than what the API has as a default: these pods come and go a hundred times as fast as in life, so moving one has
// to pay in less time.
const (
	effort      = 3_000
	move        = 200_000
	defaultMove = 20_000
	every       = time.Minute
)

// Rows are the lines of the table. The openb rows are left out, and skipped is told, where the trace is not there.
func Rows(trace string, skipped func(string)) iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for _, offerings := range []struct {
			name     string
			families []string
			bound    int64 // the effort of a sample of the bound
		}{{"g4dn", workload.G4dn, 300_000}, {"g4dn-g6e", workload.G4to6, 60_000}} {
			types := workload.Types(offerings.families, 20)
			t, err := Openb(trace, 10_200_000, 100, types)
			if err != nil {
				skipped(fmt.Sprintf("openb, %s: skipped: %v", offerings.name, err))
			} else if !t.rows("openb, "+offerings.name, offerings.bound, yield) {
				return
			}
			s := Synthetic(1, Churn{Pods: 1000, Mix: workload.Mix{Shapes: 12, Pods: 100}, Between: 10 * time.Second, Median: 5 * time.Minute}, types)
			if !s.rows("synthetic, "+offerings.name, offerings.bound, yield) {
				return
			}
		}
		halved(trace, skipped, yield)
	}
}

// rows are those of a trace: what there is without consolidation, the model of Karpenter's, and Karve's with and without steering, for each model of the
// scheduler.
func (t Trace) rows(name string, effortOfBound int64, yield func(Row) bool) bool {
	bound := sync.OnceValue(func() planner.MicroUSD { return Bound(&t, planner.Search{Effort: effortOfBound}) })
	plan := planner.Search{Effort: effort}.Build
	for _, scheduler := range []Scheduler{FirstFit, LeastAllocated, MostAllocated} {
		karve := Karve{Search: planner.Search{Effort: effort}, Move: move, Percent: 100}
		steered := karve
		steered.Steered = true
		for _, x := range []struct {
			policy   string
			steering bool
			Setup
		}{
			{"none, Karpenter's packing", false, Setup{Provision: planner.FirstFit}},
			{"none, Karve's plans", false, Setup{Provision: plan}},
			{"model of Karpenter's consolidation", false, Setup{Provision: planner.FirstFit, Consolidate: Karpenter, Every: every}},
			{"Karve", false, Setup{Provision: plan, Consolidate: karve.Consolidate, Every: every}},
			{"Karve, steering", true, Setup{Provision: plan, Consolidate: steered.Consolidate, Every: every}},
		} {
			x.Scheduler = scheduler
			row := Row{Figures{Offerings: name, Scheduler: scheduler.Name, Policy: x.policy, Steering: x.steering}, func(f *Figures) error {
				r, err := Run(&t, x.Setup)
				f.Mean, f.Bound, f.Evictions, f.Launched = r.Mean, bound(), r.Evictions, r.Launched
				f.Decision, f.Plan, f.EventsPerSecond = milliseconds(r.Decision), milliseconds(r.Planning), float64(r.Events)/r.Took.Seconds()
				return err
			}}
			if !yield(row) {
				return false
			}
		}
	}
	return true
}

// halved are fleets that Karve planned and that lose half of their pods, consolidated to the end.
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
	start := sync.OnceValue(func() planner.Layout {
		return workload.Thinned(s, planner.Build(s), 0.5, defaultMove, seed)
	})
	bound := sync.OnceValue(func() planner.MicroUSD { return planner.Search{}.Cheaper(start()).Bound })
	for _, x := range []struct {
		policy string
		end    func(planner.Layout) (planner.Layout, int, time.Duration)
	}{
		{"none", func(l planner.Layout) (planner.Layout, int, time.Duration) { return l, 0, 0 }},
		{"model of Karpenter's consolidation", func(l planner.Layout) (planner.Layout, int, time.Duration) {
			k := peer.Karpenter(l)
			return k.Layout, k.Evictions, 0
		}},
		{"Karve", ToTheEnd},
	} {
		row := Row{Figures{Offerings: name, Scheduler: "as planned", Policy: x.policy}, func(f *Figures) error {
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

// ToTheEnd takes the steps of cheaper layouts until there are none, and returns how many pods had to move and the longest that one look took.
func ToTheEnd(l planner.Layout) (end planner.Layout, evictions int, longest time.Duration) {
	for {
		start := time.Now()
		steps := planner.Search{}.Cheaper(l).Steps
		longest = max(longest, time.Since(start))
		if len(steps) == 0 {
			return l, evictions, longest
		}
		var all planner.Step
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
