package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	smithytime "github.com/aws/smithy-go/time"
)

// Figures holds the measurements of one program on one cluster. For each missing value, Reasons says why.
type Figures struct {
	Of      string
	Values  map[Column]float64
	Reasons map[Column]string
}

// Fail records err as the reason of each figure that has neither a value nor a reason.
func (f *Figures) Fail(err error) {
	for _, c := range Columns {
		if _, ok := f.Values[c]; !ok && f.Reasons[c] == "" {
			f.Reasons[c] = err.Error()
		}
	}
}

// Column is the name of a figure of Karve. For other programs the program's name is its prefix.
type Column string

// The columns, in the order of the table.
const (
	// RSS is the peak resident memory over all phases.
	RSS Column = "rssMiB"
	// IdleRSS is the resident memory at the end of the idle phase.
	IdleRSS Column = "idleRssMiB"
	// IdleCores, ChurnCores, BurstCores and EndedCores are the average CPU use in a phase, in cores.
	IdleCores  Column = "idleCores"
	ChurnCores Column = "churnCores"
	BurstCores Column = "burstCores"
	EndedCores Column = "endedCores"
	// IdleRequests is the number of API requests per second in the idle phase. The program elects no leader, so it renews no Lease.
	IdleRequests Column = "idleRequestsPerSecond"
	// FirstPlan is the time from the start of the process to its first plan for pending pods.
	FirstPlan Column = "firstPlanSeconds"
	// BurstToLastClaim is the time from the start of the burst to the creation of the last NodeClaim.
	BurstToLastClaim Column = "burstToLastClaimSeconds"
	// BurstClaims is the number of NodeClaims that the burst adds.
	BurstClaims Column = "burstClaims"
	// Look is the 99th percentile of the time to read the cluster, and Decision that of the time to decide.
	Look     Column = "lookSecondsP99"
	Decision Column = "decisionSecondsP99"
)

// Columns lists all columns in the order of the table.
var Columns = append([]Column{
	RSS, IdleRSS, IdleCores, ChurnCores, BurstCores, EndedCores, IdleRequests, FirstPlan, BurstToLastClaim, BurstClaims, Look, Decision,
}, verbColumns()...)

// Times holds the durations of the phases.
type Times struct {
	// Settle is the time from the start of the program to the idle phase. Idle, Churn and Ended are the durations of these phases.
	Settle, Idle, Churn, Ended time.Duration
	// Place is the timeout for pending pods to get a node, and for the first plan after a restart.
	Place time.Duration
}

// Full holds the times of `make bench-scale`.
var Full = Times{Settle: 20 * time.Second, Idle: 30 * time.Second, Churn: 30 * time.Second, Ended: 30 * time.Second, Place: 5 * time.Minute}

// changesPerSecond is the rate of pod changes in the churn phase.
const changesPerSecond = 50

// measurement measures one program on one cluster.
type measurement struct {
	*World
	program Program
	process process
	figures *Figures
	// looks and decisions add up the histograms of all processes of the program. Each restart begins with empty ones.
	looks     histogram
	decisions map[string]histogram
}

// Measure creates a cluster, runs a program on it through all phases and stops the cluster. After an error it also returns the figures so far.
func Measure(ctx context.Context, size Size, p Program, times Times, log func(string, ...any)) (f Figures, err error) {
	f = Figures{Of: p.Name, Values: map[Column]float64{}, Reasons: map[Column]string{}}
	w, err := NewWorld(ctx, size, p.Class, log)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	m := &measurement{World: w, program: p, figures: &f, looks: histogram{}, decisions: map[string]histogram{}}
	for _, phase := range []func(context.Context, Times) error{m.starts, m.idle, m.churns, m.bursts, m.restarts, m.ends} {
		if err := phase(ctx, times); err != nil {
			return f, fmt.Errorf("%s at %s: %w", p.Name, size, err)
		}
	}
	if err := m.collect(ctx); err != nil {
		return f, err
	}
	m.conclude()
	return f, nil
}

func (m *measurement) starts(ctx context.Context, t Times) (err error) {
	began := time.Now()
	if m.process, err = m.program.launch(ctx, m.World); err != nil {
		return err
	}
	m.log("%s is ready after %s", m.program.Name, time.Since(began).Round(100*time.Millisecond))
	if err := smithytime.SleepWithContext(ctx, t.Settle); err != nil {
		return err
	}
	return m.settle(ctx)
}

// settle waits until the program makes hardly any requests: a new one annotates the NodeClaims that it finds. It waits for at most a minute.
func (m *measurement) settle(ctx context.Context) error {
	const every, most = 2 * time.Second, time.Minute
	for began := time.Now(); time.Since(began) < most; {
		before, err := m.requests(ctx)
		if err != nil {
			return err
		}
		if err := smithytime.SleepWithContext(ctx, every); err != nil {
			return err
		}
		after, err := m.requests(ctx)
		if err != nil {
			return err
		}
		if after-before <= 1 {
			return nil
		}
	}
	m.log("it still makes requests %s after its start", most)
	return nil
}

func (m *measurement) idle(ctx context.Context, t Times) error {
	before, err := m.requests(ctx)
	if err != nil {
		return err
	}
	claims := len(m.Claims())
	if err := m.during(ctx, IdleCores, func(ctx context.Context) error { return smithytime.SleepWithContext(ctx, t.Idle) }); err != nil {
		return err
	}
	after, err := m.requests(ctx)
	if err != nil {
		return err
	}
	m.figures.Values[IdleRequests] = (after - before) / t.Idle.Seconds()
	if n := len(m.Claims()); n != claims {
		m.log("*** %d NodeClaims became %d while nothing happened", claims, n)
	}
	pid, err := m.process.pid()
	if err != nil {
		return err
	}
	m.figures.Values[IdleRSS], err = memoryMiB(pid, "VmRSS")
	return err
}

func (m *measurement) churns(ctx context.Context, t Times) error {
	return m.during(ctx, ChurnCores, func(ctx context.Context) error { return m.Churn(ctx, t.Churn, changesPerSecond) })
}

func (m *measurement) bursts(ctx context.Context, t Times) error {
	before, began, late := len(m.Claims()), time.Now(), 0
	err := m.during(ctx, BurstCores, func(ctx context.Context) error {
		err := m.Burst(ctx, m.size.burst(), burstShapes()...)
		m.log("%d pods created in %s", m.size.burst(), time.Since(began).Round(100*time.Millisecond))
		late = m.UntilPlaced(ctx, t.Place)
		return err
	})
	if err != nil {
		return err
	}
	if median, most := m.launches(); most > 0 {
		m.log("the cloud launched machines within %s, half of them within %s", most.Round(100*time.Millisecond), median.Round(100*time.Millisecond))
	}
	m.log("the last NodeClaim came %s after the first pod", m.lastClaim().Sub(began).Round(100*time.Millisecond))
	if late > 0 {
		m.figures.Reasons[BurstToLastClaim] = fmt.Sprintf("%d of %d pods had no place after %s", late, m.size.burst(), t.Place)
		m.figures.Reasons[BurstClaims] = m.figures.Reasons[BurstToLastClaim]
		return nil
	}
	m.figures.Values[BurstToLastClaim] = m.lastClaim().Sub(began).Seconds()
	m.figures.Values[BurstClaims] = float64(len(m.Claims()) - before)
	return nil
}

// restarts kills the program, creates pods, measures the commands of kubectl-karve while they are pending, and starts the program again.
func (m *measurement) restarts(ctx context.Context, t Times) error {
	if err := m.collect(ctx); err != nil {
		return err
	}
	if err := m.KillComponent(m.process.component); err != nil {
		return err
	}
	if err := m.Burst(ctx, m.size.late(), late); err != nil {
		return err
	}
	if err := m.commands(ctx); err != nil {
		return err
	}
	began, planned := time.Now(), make(chan time.Duration, 1)
	watching, cancel := context.WithTimeout(ctx, t.Place)
	defer cancel()
	go func() { planned <- m.untilPlanned(watching, began) }()
	if err := m.StartComponent(ctx, m.process.component); err != nil {
		return err
	}
	if took := <-planned; took > 0 {
		m.figures.Values[FirstPlan] = took.Seconds()
		pid, err := m.process.pid()
		if err != nil {
			return err
		}
		cores, err := cpuSeconds(pid)
		if err != nil {
			return err
		}
		m.log("the first plan is made %s after the start, with %.1f s of CPU time; load average %s", took.Round(10*time.Millisecond), cores, load())
	} else {
		m.figures.Reasons[FirstPlan] = fmt.Sprintf("there was no plan for the %d pods that waited within %s", m.size.late(), t.Place)
	}
	if n := m.UntilPlaced(ctx, t.Place); n > 0 {
		m.log("*** %d pods have no place %s after the restart", n, t.Place)
	}
	return nil
}

// untilPlanned waits for the first plan and returns the time since began. It returns 0 if the context ends first.
func (m *measurement) untilPlanned(ctx context.Context, began time.Time) time.Duration {
	for ctx.Err() == nil {
		if s, err := scrape(ctx, m.process.metricsURL); err == nil {
			plans := histogram{}
			if plans.add(s[m.program.plans]); plans.count() > 0 {
				return time.Since(began)
			}
		}
		_ = smithytime.SleepWithContext(ctx, 100*time.Millisecond)
	}
	return 0
}

func (m *measurement) ends(ctx context.Context, t Times) error {
	return m.during(ctx, EndedCores, func(ctx context.Context) error {
		began, before := time.Now(), len(m.Claims())
		if err := m.EndHalf(ctx); err != nil {
			return err
		}
		m.log("half of the pods ended in %s", time.Since(began).Round(100*time.Millisecond))
		err := smithytime.SleepWithContext(ctx, t.Ended)
		m.log("of %d NodeClaims %d are left after %s", before, len(m.Claims()), t.Ended)
		return err
	})
}

// during runs do and records the average CPU use of the program in the meantime, in cores, in column c.
func (m *measurement) during(ctx context.Context, c Column, do func(context.Context) error) error {
	m.fleet.late.Store(0)
	pid, err := m.process.pid()
	if err != nil {
		return err
	}
	before, err := cpuSeconds(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return err
	}
	after, err := cpuSeconds(pid)
	if err != nil {
		return fmt.Errorf("%s ended by itself: %w", m.program.Name, err)
	}
	took := time.Since(began)
	m.figures.Values[c] = (after - before) / took.Seconds()
	rss, err := memoryMiB(pid, "VmRSS")
	m.log("%s is %.3f over %s; %.0f MiB are resident, heartbeats were at most %s late, the load average is %s", c, m.figures.Values[c], took.Round(time.Second), rss,
		time.Duration(m.fleet.late.Load()).Round(time.Millisecond), load())
	return err
}

func (m *measurement) requests(ctx context.Context) (float64, error) {
	s, err := scrape(ctx, m.process.metricsURL)
	if err != nil {
		return 0, err
	}
	n, ok := s.sum(m.program.requests)
	if !ok {
		return 0, errors.New("the program does not count its requests")
	}
	return n, nil
}

// collect adds the peak memory and the metrics of the process to the measurement. It must run before the process ends.
func (m *measurement) collect(ctx context.Context) error {
	pid, err := m.process.pid()
	if err != nil {
		return err
	}
	most, err := memoryMiB(pid, "VmHWM")
	if err != nil {
		return err
	}
	m.figures.Values[RSS] = max(m.figures.Values[RSS], most)
	s, err := scrape(ctx, m.process.metricsURL)
	if err != nil {
		return err
	}
	m.looks.add(s[m.program.looks])
	for _, name := range m.program.decisions {
		if m.decisions[name] == nil {
			m.decisions[name] = histogram{}
		}
		m.decisions[name].add(s[name])
	}
	return nil
}

// conclude calculates the 99th percentiles. Decision is that of the slowest kind of decision.
func (m *measurement) conclude() {
	if q, ok := m.looks.quantile(0.99); ok {
		m.figures.Values[Look] = q
	} else {
		m.figures.Reasons[Look] = "it has no such step: it keeps the state of the cluster up to date, or does not measure it"
	}
	for name, h := range m.decisions {
		if q, ok := h.quantile(0.99); ok {
			m.figures.Values[Decision] = max(m.figures.Values[Decision], q)
			m.log("%s: %.0f times, p99 %.3f s", name, h.count(), q)
		}
	}
	if _, ok := m.figures.Values[Decision]; !ok {
		m.figures.Reasons[Decision] = "it made no decision"
	}
}

// load returns the host's load average of the last minute. Other processes on the host make the measured times worse.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}
