package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
)

// figures are what was measured of a row; a nil field was not. Over several snapshots they are averages, where the name says nothing else.
type figures struct {
	Workload string `json:"workload"`
	// Pods and Offerings are those of the largest snapshot.
	Pods      int `json:"pods"`
	Offerings int `json:"offerings"`
	Snapshots int `json:"snapshots"`
	// Proved is how many of the plans are proved to be optimal.
	Proved *int `json:"provedOptimal"`
	// The gap is from the proven bound up to the price, in percent of the bound.
	GapMean  *float64 `json:"gapPercentMean"`
	GapWorst *float64 `json:"gapPercentWorst"`
	// Milliseconds is how long a plan took, FirstPlan how long until the first plan that could be launched.
	Milliseconds *float64 `json:"milliseconds"`
	FirstPlan    *float64 `json:"firstPlanMilliseconds"`
	// PeakMiB is the most memory that the process had while the row was planned.
	PeakMiB *float64 `json:"peakMemoryMiB"`
	// MicroUSD is the sum of the prices of the plans; what peers cost over them is of such sums, too.
	MicroUSD int64 `json:"microUSDPerHour"`
	// Bill is what all machines cost in the end over the first plan, in percent, when the plan is carried out and made again with each launch, as the controller
	// does within its budget: all machines at once, and ten at a time while all processors are busy.
	BillAtOnce *float64 `json:"finalBillOverFirstPlanPercentAllAtOnce"`
	BillByTen  *float64 `json:"finalBillOverFirstPlanPercentTenAtATimeBusy"`
	// FirstFit is what Karpenter's packing costs over the plans, as firstfit.Plan has it, which knows of the memory of each GPU.
	FirstFit             *float64 `json:"firstFitOverPlanPercent"`
	FirstFitMilliseconds *float64 `json:"firstFitMilliseconds"`
	// Karpenter is what Karpenter's scheduler itself says, for the snapshots that it was given. Device memory it knows only as a sum of the machine.
	Karpenter             *float64 `json:"karpenterOverPlanPercent"`
	KarpenterMilliseconds *float64 `json:"karpenterMilliseconds"`
	// The Cluster Autoscaler's are of a model of it.
	LeastWaste *float64 `json:"clusterAutoscalerLeastWasteModelOverPlanPercent"`
	PerPod     *float64 `json:"clusterAutoscalerPriceModelOverPlanPercent"`
	GoalMean   *float64 `json:"goalGapPercentMean"`
	GoalWorst  *float64 `json:"goalGapPercentWorst"`
	GoalMS     *float64 `json:"goalMilliseconds"`
	// Note says what a reader has to know of the row, and why something was not measured.
	Note string `json:"note,omitempty"`
}

// average sums up to a mean; without values there is none.
type average struct {
	sum float64
	n   int
}

func (a *average) add(x float64) { a.sum, a.n = a.sum+x, a.n+1 }

func (a *average) mean() *float64 {
	if a.n == 0 {
		return nil
	}
	return new(a.sum / float64(a.n))
}

// measure plans the snapshots of a row, and has the peers plan them.
func measure(ctx context.Context, r row) (figures, error) {
	f := figures{Workload: r.name, Note: r.skipped, GoalMS: new(milliseconds(r.budget))}
	if !r.goal.proved {
		f.GoalMean, f.GoalWorst = new(r.goal.mean), new(r.goal.worst)
	}
	if r.skipped != "" {
		return f, nil
	}
	var gap, took, first average
	worst, proved, unbounded := 0.0, 0, 0
	var prices []planner.MicroUSD
	// The peers come afterwards: what they leave of memory is not the planner's, and a planner that has just begun waits for memory, unlike one that runs for days.
	peak := watchMemory()
	for s := range r.snapshots {
		runtime.GC()
		p, times := plan(s, r.budget)
		if err := check.Plan(s, p); err != nil {
			return f, fmt.Errorf("%s: the plan breaks a rule: %w", r.name, err)
		}
		if len(p.Unplaced) > 0 {
			return f, fmt.Errorf("%s: %s has no place: %s", r.name, p.Unplaced[0].Pod, p.Unplaced[0].Message)
		}
		f.Snapshots++
		f.Pods, f.Offerings = max(f.Pods, podsOf(s)), max(f.Offerings, len(s.Offerings))
		f.MicroUSD += int64(p.Price)
		prices = append(prices, p.Price)
		switch {
		case p.Bound > 0:
			x := 100 * float64(p.Price-p.Bound) / float64(p.Bound)
			gap.add(x)
			worst = max(worst, x)
		case p.Price > 0:
			unbounded++
		}
		if p.Bound == p.Price {
			proved++
		}
		took.add(milliseconds(times.all))
		if times.first > 0 {
			first.add(milliseconds(times.first))
		}
	}
	f.PeakMiB = new(peak())
	if err := r.bill(&f); err != nil {
		return f, fmt.Errorf("%s: %w", r.name, err)
	}
	firstFit, karp, leastWaste, perPod := peers()
	for s := range r.snapshots {
		for _, peer := range []*peer{firstFit, karp, leastWaste, perPod} {
			if err := peer.run(ctx, s, prices[0]); err != nil {
				return f, fmt.Errorf("%s: %w", r.name, err)
			}
		}
		prices = prices[1:]
	}
	f.Proved = &proved
	if unbounded == 0 {
		f.GapMean, f.GapWorst = gap.mean(), &worst
	}
	f.Milliseconds, f.FirstPlan = took.mean(), first.mean()
	f.FirstFit, f.FirstFitMilliseconds = firstFit.over(), firstFit.took.mean()
	f.Karpenter, f.KarpenterMilliseconds = karp.over(), karp.took.mean()
	f.LeastWaste, f.PerPod = leastWaste.over(), perPod.over()
	f.Note = strings.Join(slices.Concat(firstFit.notes, karp.notes, leastWaste.notes, perPod.notes), "; ")
	return f, nil
}

// value is a figure, 0 where it was not measured.
func value(x *float64) float64 {
	if x == nil {
		return 0
	}
	return *x
}

type times struct{ first, all time.Duration }

// plan searches for as long as the budget allows. What follows a search, from a name for each pod to Karpenter's packing to compare with, takes some as long as the first plan did.
func plan(s planner.Snapshot, budget time.Duration) (planner.Plan, times) {
	var t times
	start := time.Now()
	p := solve.Solver{
		Effort: math.MaxInt64,
		Stop:   func() bool { return time.Since(start) >= budget-budget/40-t.first*3/2 },
		First:  func(planner.Plan) { t.first = time.Since(start) },
	}.Plan(s)
	t.all = time.Since(start)
	return p, t
}

func podsOf(s planner.Snapshot) int {
	n := 0
	for _, c := range s.Classes {
		n += len(c.Pods)
	}
	return n
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// watchMemory returns a function that ends the watch and returns the most memory in MiB that the process had from the system meanwhile.
func watchMemory() func() float64 {
	runtime.GC()
	debug.FreeOSMemory()
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	var most uint64
	look := func() {
		metrics.Read(samples)
		most = max(most, samples[0].Value.Uint64()-samples[1].Value.Uint64())
	}
	look()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				look()
			}
		}
	}()
	return func() float64 {
		close(stop)
		<-done
		look()
		return float64(most) / (1 << 20)
	}
}
