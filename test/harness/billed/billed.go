// Package billed makes up fleets of the past: what their machines cost, and the series that a Prometheus would have of them.
package billed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/test/harness/cluster"
)

// Step is the time between two states of a fleet, and between the samples of recorded series.
const Step = 5 * time.Minute

// Machine is a machine of the past. Its times are in steps.
type Machine struct {
	Pool, Class string
	// Micro is the price in micro-dollars per hour, and List that in the cloud's list. The replicas divide both without a remainder.
	Micro, List, Replicas int64
	// It is launched, takes pods from ready until it is drained, and is gone in the end.
	Launched, Ready, Drained, Gone int
	Pods                           []Pod
}

// Pod holds replicas of a machine from a step to another.
type Pod struct {
	Namespace, Owner, Team string
	Replicas               int64
	From, To               int
}

// Size is how large a fleet is.
type Size struct {
	Steps, Machines, Pools, Namespaces, OwnersEach int
}

// Fleet makes up machines that come and go, so that as many as wanted are there at any time, with pods that come and go.
func Fleet(seed uint64, size Size) []Machine {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // The same fleet in every run.
	var all []Machine
	for slot := range size.Machines {
		for at := -random.IntN(2000); at < size.Steps; {
			pool := slot % size.Pools
			m := Machine{
				Pool: fmt.Sprint("pool-", pool), Class: fmt.Sprint("class-", pool/2), Replicas: []int64{4, 8, 10}[pool%3], Micro: 40 * int64(10_000+977*pool+13*random.IntN(50)),
				Launched: at, Ready: at + 1 + random.IntN(3),
			}
			m.List = m.Micro + 40*[]int64{0, 5000, -1000}[slot%3] // A discount, and a fee.
			m.Drained = m.Ready + 12*(6+random.IntN(200))
			m.Gone = m.Drained + random.IntN(4)
			m.Pods = podsOf(random, &m, size)
			all = append(all, m)
			at = m.Gone + random.IntN(3)
		}
	}
	return all
}

// podsOf fills most of the replicas of a machine with pods, one after the other. Namespaces use only some of the pools.
func podsOf(random *rand.Rand, m *Machine, size Size) []Pod {
	var pods []Pod
	for free := m.Replicas; free > 0; {
		held := min(free, 1+random.Int64N(3))
		free -= held
		for at := m.Ready + random.IntN(30); at < m.Drained; {
			namespace := (random.IntN(3)*7 + len(m.Pool)*3 + int(m.Pool[len(m.Pool)-1])) % size.Namespaces
			p := Pod{Namespace: fmt.Sprint("team-", namespace), Owner: fmt.Sprint("serve-", random.IntN(size.OwnersEach)), Team: fmt.Sprint("t", namespace%4), Replicas: held, From: at}
			p.To = min(m.Drained, at+6*(1+random.IntN(60)))
			pods = append(pods, p)
			at = p.To + random.IntN(20)
		}
	}
	return pods
}

// Series are the values of series in each step, in micro-dollars per hour.
type Series struct {
	steps int
	// changes has the difference to the step before.
	changes map[string][]int64
}

// NewSeries returns series of this many steps.
func NewSeries(steps int) *Series { return &Series{steps, map[string][]int64{}} }

// Add adds an amount to a series from a step to another.
func (s *Series) Add(series string, from, to int, micro int64) {
	from, to = min(s.steps, max(0, from)), min(s.steps, max(0, to))
	if from >= to || micro == 0 {
		return
	}
	if s.changes[series] == nil {
		s.changes[series] = make([]int64, s.steps+1)
	}
	s.changes[series][from] += micro
	s.changes[series][to] -= micro
}

// AddRecorded adds the series that the recording rules write for a machine. labels are further labels of each, such as {cluster="a"} without the braces.
func (s *Series) AddRecorded(m *Machine, labels string) {
	s.addRecorded(m, "karve_cost", m.Micro, labels)
	s.addRecorded(m, "karve_cost_discount", m.List-m.Micro, labels)
}

func (s *Series) addRecorded(m *Machine, metric string, price int64, labels string) {
	name := func(of string) string { return fmt.Sprintf(`__name__="%s:%s_usd_per_hour:avg5m"`, of, metric) }
	pool := func(purpose bill.Purpose) string {
		return fmt.Sprintf(`{%s,nodepool=%q,gpunodeclass=%q,share=%q%s}`, name("nodepool"), m.Pool, m.Class, purpose, labels)
	}
	s.Add(pool(bill.Overhead), m.Launched, m.Ready, price)
	s.Add(pool(bill.Idle), m.Ready, m.Drained, price)
	s.Add(pool(bill.Overhead), m.Drained, m.Gone, price)
	for _, p := range m.Pods {
		micro := price / m.Replicas * p.Replicas
		s.Add(pool(bill.Idle), p.From, p.To, -micro)
		for _, series := range []string{
			pool(bill.Used),
			fmt.Sprintf(`{%s,namespace=%q,nodepool=%q%s}`, name("namespace"), p.Namespace, m.Pool, labels),
			fmt.Sprintf(`{%s,namespace=%q,owner_kind="Deployment",owner=%q,nodepool=%q%s}`, name("owner"), p.Namespace, p.Owner, m.Pool, labels),
			fmt.Sprintf(`{%s,label="team",value=%q,nodepool=%q%s}`, name("label"), p.Team, m.Pool, labels),
		} {
			s.Add(series, p.From, p.To, micro)
		}
	}
}

// Write writes the series for blocks, from a time on: the sample of a step is at its end. A value of 0 is no sample, and neither are those of steps for which missing
// returns true. measured is a series that has a sample in each other step.
func (s *Series) Write(w io.Writer, start time.Time, measured string, missing func(step int) bool) error {
	line := func(series string, value func(step int) string) error {
		var text strings.Builder
		last, times := "", 0
		flush := func() {
			if times > 0 {
				_, _ = fmt.Fprintf(&text, "%sx%d ", last, times)
			}
		}
		for step := range s.steps {
			v := "_"
			if !missing(step) {
				v = value(step)
			}
			if v != last {
				flush()
				last, times = v, 0
			}
			times++
		}
		flush()
		_, err := fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", series, start.Add(Step).Unix(), int(Step.Seconds()), text.String())
		return err
	}
	if err := line(measured, func(int) string { return "0" }); err != nil {
		return err
	}
	for series, changes := range s.changes {
		values, sum := make([]int64, s.steps), int64(0)
		for step := range s.steps {
			sum += changes[step]
			values[step] = sum
		}
		err := line(series, func(step int) string {
			if values[step] == 0 {
				return "_"
			}
			return strconv.FormatFloat(float64(values[step])/1e6, 'g', -1, 64)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Len returns the number of series.
func (s *Series) Len() int { return len(s.changes) }

// Samples returns about how many samples there are.
func (s *Series) Samples() int { return len(s.changes) * s.steps }

// Blocks writes series into the folder of a Prometheus. bin is where it builds the program for that.
func Blocks(ctx context.Context, bin, folder string, series func(io.Writer) error) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	path := filepath.Join(bin, "blocks")
	build := exec.CommandContext(ctx, "go", "build", "-tags", "remove_all_sd", "-ldflags", "-s -w", "-o", path, ".")
	build.Dir = filepath.Join(root, "test", "harness", "cluster", "build", "prometheus", "blocks")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the writer of blocks: %w\n%s", err, out)
	}
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path, folder)
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failed := series(in)
	if err := in.Close(); failed == nil {
		failed = err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("writing blocks: %w: %s", err, &errs)
	}
	return failed
}

// Ledger is a bill by hand: dollars by name.
type Ledger map[string]Bill

// Bill is in dollars.
type Bill struct{ Used, Idle, Overhead float64 }

// Total returns the sum.
func (b Bill) Total() float64 { return b.Used + b.Idle + b.Overhead }

// Listed returns the machines at their prices in the cloud's list.
func Listed(machines []Machine) []Machine {
	all := slices.Clone(machines)
	for i := range all {
		all[i].Micro = all[i].List
	}
	return all
}

// Part is how long a state of a fleet counts on a day. Days are numbered.
type Part struct {
	Day   int
	Hours float64
}

// EachStep returns the parts for series that have a sample of each step, except of missing ones, in days in UTC.
func EachStep(start time.Time, missing func(step int) bool) func(step int) []Part {
	return func(step int) []Part {
		if missing(step) {
			return nil
		}
		return []Part{{DayOf(start.Add(time.Duration(step) * Step)), Step.Hours()}}
	}
}

// DayOf returns the number of the day in UTC that has a time.
func DayOf(t time.Time) int { return int(t.Unix() / (24 * 60 * 60)) }

// Sum adds up what machines have cost in some steps, by the name that a function gives to pods. parts says for how long each step counts. On each day, the idle and
// overhead parts of a pool are divided among those who used it.
func Sum(machines []Machine, steps int, parts func(step int) []Part, name func(m *Machine, p *Pod) string) Ledger {
	type place struct {
		day  int
		pool string
	}
	bills, used := map[place]Bill{}, map[place]map[string]float64{}
	counted := make([][]Part, steps)
	for step := range counted {
		counted[step] = parts(step)
	}
	each := func(pool string, from, to int, add func(at place, b *Bill, hours float64)) {
		for step := max(0, from); step < min(steps, to); step++ {
			for _, p := range counted[step] {
				at := place{p.Day, pool}
				b := bills[at]
				add(at, &b, p.Hours)
				bills[at] = b
			}
		}
	}
	for i := range machines {
		m := &machines[i]
		price := float64(m.Micro) / 1e6
		each(m.Pool, m.Launched, m.Gone, func(_ place, b *Bill, hours float64) { b.Overhead += price * hours })
		each(m.Pool, m.Ready, m.Drained, func(_ place, b *Bill, hours float64) {
			b.Overhead -= price * hours
			b.Idle += price * hours
		})
		for j := range m.Pods {
			p := &m.Pods[j]
			share := price * float64(p.Replicas) / float64(m.Replicas)
			who := name(m, p)
			each(m.Pool, p.From, p.To, func(at place, b *Bill, hours float64) {
				b.Used += share * hours
				b.Idle -= share * hours
				if used[at] == nil {
					used[at] = map[string]float64{}
				}
				used[at][who] += share * hours
			})
		}
	}
	l := Ledger{}
	for at, b := range bills {
		for who, usd := range used[at] {
			part := usd / b.Used
			sum := l[who]
			l[who] = Bill{sum.Used + usd, sum.Idle + part*b.Idle, sum.Overhead + part*b.Overhead}
		}
		if len(used[at]) == 0 {
			sum := l["unused"]
			l["unused"] = Bill{sum.Used, sum.Idle + b.Idle, sum.Overhead + b.Overhead}
		}
	}
	return l
}
