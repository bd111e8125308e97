package replay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/solve"
)

// Comparison is what a trace would have cost.
type Comparison struct {
	// Hours is the duration of the trace. Pods is the number of its pods. Running is how many of them ran at a time on average.
	Hours   float64 `json:"hours"`
	Pods    int     `json:"pods"`
	Running float64 `json:"meanRunningPods"`
	// StepSeconds is the time between two decisions.
	StepSeconds int `json:"stepSeconds"`
	// Outcomes are those of whole GPUs, of Karpenter and of Karve.
	Outcomes []Outcome `json:"outcomes"`
	// Restart is the cost of restarting a pod, in micro-dollars.
	Restart planner.MicroUSD `json:"restartMicroUSD"`
	// Left are the pods and lines that are left out.
	Left []Left `json:"leftOut,omitempty"`
}

// Outcome is what the machines of a policy would have cost.
type Outcome struct {
	Policy string `json:"policy"`
	// Total is the price of all machines for their time, in micro-dollars. Mean is the average price per hour.
	Total planner.MicroUSD `json:"microUSD"`
	Mean  planner.MicroUSD `json:"meanMicroUSDPerHour"`
	// Launched counts machines, Peak is the most of them at a time, and Moved counts the pods that had to move to another machine.
	Launched int `json:"machinesLaunched"`
	Peak     int `json:"mostMachines"`
	Moved    int `json:"podsMoved"`
	// Expired counts the pods that had to move because their machine expired.
	Expired int `json:"-"`
	// Restarts is the restart cost of the pods that moved, in micro-dollars.
	Restarts planner.MicroUSD `json:"restartsMicroUSD"`
	// Series is the average price per hour in each of the equal parts of the trace.
	Series []planner.MicroUSD `json:"seriesMicroUSDPerHour"`
}

const (
	// parts is the number of parts of a trace in a series.
	parts = 60
	// steps is the maximum number of steps in which pods arrive, which cost a plan each, and quietSteps that of all steps. minStep is the shortest step.
	steps      = 9000
	quietSteps = 300_000
	minStep    = 10 * time.Second
	// consolidations is the maximum number of consolidations of a replay. soonest is the shortest interval between them.
	consolidations = 1500
	soonest        = time.Minute
	// effort limits the search for a plan or for a cheaper layout, so that a month takes less than a minute.
	effort = 2000
)

// Step returns the time between two decisions in the replay of a trace: ten seconds, or more for long traces and for those of many pods.
func Step(t *Trace) time.Duration {
	step := minStep
	for _, longer := range []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour} {
		if t.end(step)/step > quietSteps || t.arrivals(step) > steps {
			step = longer
		}
	}
	return step
}

func (t *Trace) arrivals(step time.Duration) int {
	n, last := 0, time.Duration(-1)
	for i := range t.Pods {
		if at := nextStep(t.Pods[i].Arrives, step); at != last {
			n, last = n+1, at
		}
	}
	return n
}

// nextStep returns the first step at or after a time.
func nextStep(at, step time.Duration) time.Duration { return (at + step - 1).Truncate(step) }

// brief returns the pods that come and go between two steps, and so cost nothing in the replay.
func (t *Trace) brief(step time.Duration) []Left {
	var left lefts
	for i, p := range t.Pods {
		if nextStep(p.Arrives, step) == nextStep(p.Ends, step) {
			left.add(fmt.Sprintf("the pod ran for less than the %s between two decisions of the replay", step), fmt.Sprintf("pod %d", i+1))
		}
	}
	return left
}

// Compare replays a trace with whole GPUs, with Karpenter's packing and consolidation, and with Karve's. It returns an error if a policy breaks a rule, or a snapshot is not valid.
func Compare(t Traces) (Comparison, error) {
	if len(t.Shared.Pods) == 0 {
		return Comparison{Left: t.Left}, errors.New("no pod of the trace can be replayed")
	}
	if err := errors.Join(planner.Validate(t.Shared.Snapshot), planner.Validate(t.Whole.Snapshot)); err != nil {
		return Comparison{}, fmt.Errorf("the machines cannot be planned with as they were read, which is a bug in Karve: %w", err)
	}
	step := Step(&t.Shared)
	karve, restart, err := withKarve()
	if err != nil {
		return Comparison{}, err
	}
	policies := []struct {
		name  string
		trace *Trace
		setup Setup
	}{
		{"a whole GPU for each replica", &t.Whole, Setup{Provision: firstfit.Plan, Consolidate: Karpenter}},
		{"shared GPUs, Karpenter alone", &t.Shared, Setup{Provision: firstfit.Plan, Consolidate: Karpenter}},
		{"shared GPUs, Karve", &t.Shared, karve},
	}
	c := Comparison{
		Pods: len(t.Shared.Pods), StepSeconds: int(step.Seconds()), Restart: restart, Outcomes: make([]Outcome, len(policies)),
		Left: append(slices.Clone(t.Left), t.Shared.brief(step)...),
	}
	errs := make([]error, len(policies))
	var group sync.WaitGroup
	for i, p := range policies {
		group.Go(func() {
			var hours, running float64
			c.Outcomes[i], hours, running, errs[i] = outcome(p.trace, p.setup, step)
			c.Outcomes[i].Policy = p.name
			c.Outcomes[i].Restarts = planner.MicroUSD(c.Outcomes[i].Moved) * restart
			if i == len(policies)-1 {
				c.Hours, c.Running = hours, running
			}
		})
	}
	group.Wait()
	return c, errors.Join(errs...)
}

// withKarve returns the setup of Karve, and the default cost of a restart.
func withKarve() (Setup, planner.MicroUSD, error) {
	restart, err := v1alpha1.Consolidation{}.RestartMicroUSD()
	search := solve.Solver{Effort: effort}
	karve := &Karve{Search: search, Restart: planner.MicroUSD(restart)}
	return Setup{Provision: search.Plan, Consolidate: karve.Consolidate}, karve.Restart, err
}

// Total replays a trace with Karve, which decides in steps, and returns the price of all machines for their time and of the restarts of pods whose machine expired, in
// micro-dollars.
func Total(t *Trace, step time.Duration) (planner.MicroUSD, error) {
	karve, restart, err := withKarve()
	if err != nil {
		return 0, err
	}
	o, _, _, err := outcome(t, karve, step)
	return o.Total + planner.MicroUSD(o.Expired)*restart, err
}

// Planned returns what the machines of a trace would cost, in micro-dollars, if Karve's plan at each of n moments held for the n-th part of the trace: nobody waits, and
// pods move for nothing. It is faster than [Total], and a small change of the trace does not change it by chance.
func Planned(t *Trace, n int) planner.MicroUSD {
	search := solve.Solver{Effort: effort}
	known := map[string]planner.MicroUSD{}
	var sum float64
	for i := range n {
		s := t.at(t.End * time.Duration(2*i+1) / time.Duration(2*n))
		if len(s.Classes) == 0 {
			continue
		}
		var key strings.Builder // Which pods of a shape run does not matter, only how many.
		for _, c := range s.Classes {
			fmt.Fprintf(&key, "%d of %d, ", len(c.Pods), t.Pods[podOf(c.Pods[0])].Shape)
		}
		if _, ok := known[key.String()]; !ok {
			known[key.String()] = search.Plan(s).Price
		}
		sum += float64(known[key.String()])
	}
	return planner.MicroUSD(sum * t.End.Hours() / float64(n))
}

func outcome(t *Trace, s Setup, step time.Duration) (o Outcome, hours, running float64, err error) {
	s.Every, s.Batch, s.Trusting = max(soonest, step, (t.end(step)/consolidations).Round(step)), step, true
	var sums [parts]planner.MicroUSD
	var counts [parts]int
	end := t.end(s.Batch)
	var total, rest planner.MicroUSD // rest is in micro-dollars times seconds per hour.
	s.Seen = func(now time.Duration, price planner.MicroUSD) {
		part := min(parts-1, int(now*parts/(end+1)))
		sums[part] += price
		counts[part]++
		rest += price * planner.MicroUSD(min(s.Batch, end-now)/time.Second)
		total, rest = total+rest/3600, rest%3600
	}
	r, err := Run(t, s)
	if err != nil {
		return o, 0, 0, err
	}
	o = Outcome{Total: total, Mean: r.Mean, Launched: r.Launched, Peak: r.Peak, Moved: r.Evictions, Expired: r.Expired}
	for i, n := range counts {
		if n > 0 {
			o.Series = append(o.Series, sums[i]/planner.MicroUSD(n))
		}
	}
	return o, end.Hours(), r.Pods, nil
}

// Cost is the price of the machines and of the restarts.
func (o *Outcome) Cost() planner.MicroUSD { return o.Total + o.Restarts }

// Saving returns by how many percent the machines of the last outcome are cheaper than those of another. The cost of restarts is an assumption and does not
// count.
func (c *Comparison) Saving(than int) float64 {
	other, karve := c.Outcomes[than].Total, c.Outcomes[len(c.Outcomes)-1].Total
	if other <= 0 {
		return 0
	}
	return 100 * float64(other-karve) / float64(other)
}
