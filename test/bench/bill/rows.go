package bill

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/replay"
	bench "karve.sh/karve/test/bench/replay"
)

// Bill is what a policy pays in a row.
type Bill struct {
	// Machines is the price of the machines, in US dollars. Moves counts the pods that had to move, and Sum adds what their restarts cost.
	Machines float64 `json:"machinesUSD"`
	Moves    int     `json:"moves"`
	Sum      float64 `json:"sumUSD"`
}

// Figures are the measurements of a row.
type Figures struct {
	Row   string  `json:"row"`
	Hours float64 `json:"hours"`
	Pods  int     `json:"pods"`
	Karve Bill    `json:"karve"`
	// Bound is what any machines cost at least, without restarts, at sampled times. With as many samples as time allows it is a few tenths of a percent off.
	Bound float64 `json:"boundUSD"`
	// Karpenter is the model of Karpenter's packing and consolidation.
	Karpenter Bill `json:"karpenterModel"`
	// AtRate is the policy before there were accounts, at the default of $0.05 an hour for each move, and Best at the rate that was best for this row.
	AtRate   Bill    `json:"fixedRate"`
	Best     Bill    `json:"bestFixedRate"`
	BestRate float64 `json:"bestRateUSDPerHour"`
}

const (
	effort        = 10_000
	effortOfBound = 100_000
	every         = time.Minute
)

// rates are the savings per hour and move that the policy before is tried with, in micro-dollars. The first that is listed here as a default was one.
var rates = []planner.MicroUSD{2_000, 5_000, 10_000, 20_000, defaultRate, 100_000, 200_000, 400_000}

const defaultRate = 50_000

// Row is a line of the table.
type Row struct {
	Name  string
	trace func() (replay.Trace, error)
}

// Rows returns the lines of the table. All are measured with one setting: the default of restartCost.
func Rows(openb string) []Row {
	var rows []Row
	add := func(name string, trace func() (replay.Trace, error)) { rows = append(rows, Row{name, trace}) }
	for _, offerings := range []struct {
		name     string
		families []string
	}{{"g4dn", workload.G4dn}, {"g4dn-g6e", workload.G4to6}} {
		for _, factor := range []int64{1, 10, 100} {
			add(fmt.Sprintf("openb %dx, %s", factor, offerings.name), func() (replay.Trace, error) {
				return bench.Openb(openb, 10_200_000, factor, workload.Types(offerings.families, 20))
			})
		}
	}
	types := workload.Types(workload.G4to6, 10)
	of := func(t func() replay.Trace) func() (replay.Trace, error) {
		return func() (replay.Trace, error) { return t(), nil }
	}
	add("daily tides, g4dn-g6e", of(func() replay.Trace { return tides(shapes(types, 100), types) }))
	add("Jobs, g4dn-g6e", of(func() replay.Trace { return jobs(shapes(types, 100), types) }))
	add("inference with rollouts, g4dn-g6e", of(func() replay.Trace { return inference("inference", shapes(types, 100), types) }))
	zones := workload.Spread(workload.Types(workload.G4dn, 10), 3, 1)
	add("inference, moving spot prices, g4dn", of(func() replay.Trace { return spot(inference("spot", shapes(zones, 100), zones), zones) }))
	fixed := onDemand(workload.Types(workload.G4dn, 10), 3)
	add("daily tides over three zones, g4dn", of(func() replay.Trace { return tides(zonal(shapes(fixed, 100), fixed, 3), fixed) }))
	return rows
}

// Measure replays the row with each policy. Pods are placed by the model of the default scheduler, and machines are launched at once.
func (r Row) Measure() (Figures, error) {
	t, err := r.trace()
	if err != nil {
		return Figures{}, err
	}
	micro, err := v1alpha1.Consolidation{}.RestartMicroUSD()
	if err != nil {
		return Figures{}, err
	}
	restart, search := planner.MicroUSD(micro), solve.Solver{Effort: effort}
	f := Figures{Row: r.Name, Hours: (t.Pods[len(t.Pods)-1].Arrives + 2*every).Hours(), Pods: len(t.Pods)}
	var group sync.WaitGroup
	errs := make([]error, 2+len(rates))
	policy := 0
	pay := func(b *Bill, s replay.Setup) {
		failed := &errs[policy]
		policy++
		group.Go(func() {
			s.Every, s.Trusting = every, true
			if f.Hours > 24 {
				s.Batch = every
			}
			result, err := replay.Run(&t, s)
			*failed = err
			machines := float64(result.Mean) / 1e6 * f.Hours
			*b = Bill{machines, result.Evictions, machines + float64(result.Evictions)*float64(restart)/1e6}
		})
	}
	pay(&f.Karve, replay.Setup{Provision: search.Plan, Consolidate: (&replay.Karve{Search: search, Restart: restart}).Consolidate})
	pay(&f.Karpenter, replay.Setup{Provision: firstfit.Plan, Consolidate: replay.Karpenter})
	before := make([]Bill, len(rates))
	for i, rate := range rates {
		pay(&before[i], replay.Setup{Provision: search.Plan, Consolidate: (&replay.FixedRate{Search: search, PerMove: rate}).Consolidate})
	}
	group.Go(func() { f.Bound = float64(replay.Bound(&t, solve.Solver{Effort: effortOfBound})) / 1e6 * f.Hours })
	group.Wait()
	for i, rate := range rates {
		if rate == defaultRate {
			f.AtRate = before[i]
		}
		if i == 0 || before[i].Sum < f.Best.Sum {
			f.Best, f.BestRate = before[i], float64(rate)/1e6
		}
	}
	return f, errors.Join(errs...)
}
