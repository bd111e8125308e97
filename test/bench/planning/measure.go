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
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
)

// figures are the measurements of a row. A nil field was not measured. Over several snapshots they are averages, unless the name says otherwise.
type figures struct {
	Workload string `json:"workload"`
	// Pods and Offerings are those of the largest snapshot.
	Pods      int `json:"pods"`
	Offerings int `json:"offerings"`
	Snapshots int `json:"snapshots"`
	// Proved is how many of the plans are proven optimal.
	Proved *int `json:"provedOptimal"`
	// The gap is the distance from the proven bound to the price, in percent of the bound.
	GapMean  *float64 `json:"gapPercentMean"`
	GapWorst *float64 `json:"gapPercentWorst"`
	// Milliseconds is how long a plan took. FirstPlan is the time until the first plan that could be launched.
	Milliseconds *float64 `json:"milliseconds"`
	FirstPlan    *float64 `json:"firstPlanMilliseconds"`
	// PeakMiB is the peak memory of the process while it planned the row.
	PeakMiB *float64 `json:"peakMemoryMiB"`
	// MicroUSD is the sum of the prices of the plans. The figures of peers compare such sums too.
	MicroUSD int64 `json:"microUSDPerHour"`
	// Bill is what the plans cost with reservations and a savings plan, apart from the reservations.
	Bill int64 `json:"billMicroUSDPerHour,omitempty"`
	// The final bill is what all machines cost over the first plan, in percent, when the plan is carried out and recomputed with each launch within the
	// controller's budget: BillAtOnce launches all machines at once, BillByTen ten at a time while all processors are busy.
	BillAtOnce *float64 `json:"finalBillOverFirstPlanPercentAllAtOnce"`
	BillByTen  *float64 `json:"finalBillOverFirstPlanPercentTenAtATimeBusy"`
	// OverBest is how much more the plans cost together than the best known plans.
	OverBest *float64 `json:"overBestKnownPercent,omitempty"`
	// FirstFit is the extra cost of Karpenter's packing over Karve's plans. firstfit.Plan computes it and knows the memory of each GPU.
	FirstFit             *float64 `json:"firstFitOverPlanPercent"`
	FirstFitMilliseconds *float64 `json:"firstFitMilliseconds"`
	// Karpenter is the extra cost of the plans of Karpenter's own scheduler, for the snapshots that it planned. It knows GPU memory only as a sum per
	// machine.
	Karpenter             *float64 `json:"karpenterOverPlanPercent"`
	KarpenterMilliseconds *float64 `json:"karpenterMilliseconds"`
	// LeastWaste and PerPod come from a model of the Cluster Autoscaler.
	LeastWaste *float64 `json:"clusterAutoscalerLeastWasteModelOverPlanPercent"`
	PerPod     *float64 `json:"clusterAutoscalerPriceModelOverPlanPercent"`
	// Slots is the extra cost of a plan that rounds the device memory of pods up to slots.
	Slots     *float64 `json:"slotsOverExactPercent,omitempty"`
	GoalMean  *float64 `json:"goalGapPercentMean"`
	GoalWorst *float64 `json:"goalGapPercentWorst"`
	GoalMS    *float64 `json:"goalMilliseconds"`
	GoalBest  *float64 `json:"goalOverBestKnownPercent,omitempty"`
	// Note holds what a reader must know about the row, and why something was not measured.
	Note string `json:"note,omitempty"`
}

// slotsGoal is how much more the plan for slots may cost than that for exact amounts, in percent.
const slotsGoal = 3

// compareWithExact notes what the plan for slots of device memory costs over the plan of an earlier row, which knows the exact amounts.
func (f *figures) compareWithExact(r row, earlier []figures) {
	i := slices.IndexFunc(earlier, func(e figures) bool { return e.Workload == r.exact })
	if i < 0 || f.MicroUSD == 0 || earlier[i].MicroUSD == 0 {
		return
	}
	f.Slots = new(100 * (float64(f.MicroUSD)/float64(earlier[i].MicroUSD) - 1))
	f.Note = strings.TrimPrefix(fmt.Sprintf("%s; %+.2f %% over the plan with exact memory, goal %d %%", f.Note, *f.Slots, slotsGoal), "; ")
}

// average computes a mean. It has none without values.
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

// measure plans the snapshots of a row with Karve and with its peers, and compares with the best known plans.
func measure(ctx context.Context, r row, k best) (figures, error) {
	f := figures{Workload: r.name, Note: r.skipped, GoalMS: new(milliseconds(r.budget))}
	if !r.goal.proved {
		f.GoalMean, f.GoalWorst = new(r.goal.mean), new(r.goal.worst)
	}
	if r.skipped != "" {
		return f, nil
	}
	var gap, took, first average
	worst, proved, unbounded := 0.0, 0, 0
	var prices, best, costs []planner.MicroUSD
	var filled string
	// The peers run afterwards, because the memory that they hold is not the planner's. Also, a planner in a fresh process waits for memory, unlike one
	// that has run for days.
	peak := watchMemory()
	for s := range r.snapshots {
		runtime.GC()
		budget := r.limit(s)
		f.GoalMS = new(max(value(f.GoalMS), milliseconds(budget)))
		p, times := r.plan(s, budget)
		if err := check.Plan(s, p); err != nil {
			return f, fmt.Errorf("%s: the plan breaks a rule: %w", r.name, err)
		}
		if len(p.Unplaced) > 0 {
			return f, fmt.Errorf("%s: %s has no place: %s", r.name, p.Unplaced[0].Pod, p.Unplaced[0].Message)
		}
		f.Snapshots++
		f.Pods, f.Offerings = max(f.Pods, podsOf(s)), max(f.Offerings, len(s.Offerings))
		f.MicroUSD += int64(p.Price)
		prices, costs = append(prices, p.Price), append(costs, r.cost(s, p))
		if r.owned {
			filled = slotsOf(s, p)
		}
		if known, ok := k.price(r.name, f.Snapshots, p.Price); ok {
			best = append(best, known)
		}
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
	f.OverBest = over(prices, best)
	if r.goal.overBest > 0 {
		f.GoalBest = new(r.goal.overBest)
	}
	if err := r.bill(&f); err != nil {
		return f, fmt.Errorf("%s: %w", r.name, err)
	}
	if err := r.compare(ctx, &f, costs, filled); err != nil {
		return f, fmt.Errorf("%s: %w", r.name, err)
	}
	f.Proved = &proved
	if unbounded == 0 {
		f.GapMean, f.GapWorst = gap.mean(), &worst
	}
	f.Milliseconds, f.FirstPlan = took.mean(), first.mean()
	return f, nil
}

// compare lets the peers plan the snapshots of a row, for which Karve's plans cost so much, and the last one fills so many slots.
func (r row) compare(ctx context.Context, f *figures, costs []planner.MicroUSD, filled string) error {
	firstFit, karp, leastWaste, perPod := peers()
	if r.owned {
		karp.plan, karp.limit = withReservations(karp), roundsLimit
		firstFit.done, leastWaste.done, perPod.done = true, true, true // They know no reservations.
		for _, c := range costs {
			f.Bill += int64(c)
		}
		karp.notes = append(karp.notes, fmt.Sprintf("Karve fills %s, and adds $%.2f an hour to the bill", filled, float64(f.Bill)/1e6))
	}
	for s := range r.snapshots {
		for _, peer := range []*peer{firstFit, karp, leastWaste, perPod} {
			if err := peer.run(ctx, s, costs[0], r.cost); err != nil {
				return err
			}
		}
		costs = costs[1:]
	}
	f.FirstFit, f.FirstFitMilliseconds = firstFit.over(), firstFit.took.mean()
	f.Karpenter, f.KarpenterMilliseconds = karp.over(), karp.took.mean()
	f.LeastWaste, f.PerPod = leastWaste.over(), perPod.over()
	f.Note = strings.Join(slices.Concat(firstFit.notes, karp.notes, leastWaste.notes, perPod.notes), "; ")
	return nil
}

// cost returns what the machines of a plan cost.
func (r row) cost(s planner.Snapshot, p planner.Plan) planner.MicroUSD {
	if r.owned {
		return workload.Bill(s, p)
	}
	return p.Price
}

// value returns a figure, or 0 if it was not measured.
func value(x *float64) float64 {
	if x == nil {
		return 0
	}
	return *x
}

type times struct{ first, all time.Duration }

// ownedEffort is about a second of search on two cores.
const ownedEffort = 5 * solve.DefaultEffort

// plan searches within the budget. With reservations and a savings plan, it searches with an effort instead, so that the plan does not depend on the computer.
func (r row) plan(s planner.Snapshot, budget time.Duration) (planner.Plan, times) {
	if !r.owned {
		return plan(s, budget)
	}
	start := time.Now()
	p := solve.Solver{Effort: ownedEffort}.Plan(s)
	return p, times{all: time.Since(start)}
}

// plan searches within the budget. The steps after the search, from naming the pods to the comparison with Karpenter's packing, take about as long as
// the first plan did, so the search stops earlier by that much.
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

// watchMemory starts to watch the memory of the process. The returned function stops that and returns the peak in MiB.
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
