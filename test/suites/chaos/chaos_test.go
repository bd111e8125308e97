package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	smithytime "github.com/aws/smithy-go/time"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/test/harness/cluster"
)

// short is the default length of a script.
const short = 30 * time.Second

// usual is the default seed: its short script has most faults of the adversary, and does not have all machines replaced.
const usual = 50

// long is the length from which on two controllers elect a leader and the price of the final machines is checked.
const long = 3 * time.Minute

// stays returns how long the cluster must stay right before it counts as settled: longer after a long script. This finds oscillation.
func stays(during time.Duration) time.Duration {
	if during >= long {
		return 30 * time.Second
	}
	return 4 * time.Second
}

// calm bounds how long the cluster takes to settle after the last fault. Pods of a lost node are found after a minute, and refused offerings are retried after
// some minutes.
const calm = 10 * time.Minute

// start bounds how long the cluster takes to settle before the first fault.
const start = 4 * time.Minute

// TestClusterSettlesAfterFaults plays a script and checks the final state. KARVE_CHAOS_SEED sets the seed and KARVE_CHAOS_DURATION the length of the script.
func TestClusterSettlesAfterFaults(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	seed, during := settings(t)
	t.Logf("KARVE_CHAOS_SEED=%d KARVE_CHAOS_DURATION=%s", seed, during)
	w := newWorld(t, during >= long)
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.quiet = true
	}()
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.stand(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	quiet := stays(during)
	w.settles(t, "before the first fault", start, quiet, w.problems)
	if err := w.withdraw(t.Context(), early); err != nil {
		t.Fatal(err)
	}

	c := &chaos{world: w, victims: map[int]string{}, liars: map[int]string{}, interrupted: map[string]bool{}, stops: map[int]func(){}}
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	churned := make(chan struct{})
	go func() {
		defer close(churned)
		if err := w.churn(ctx, rand.New(rand.NewPCG(seed, 2)), time.Now().Add(during)); err != nil {
			stop(err)
		}
	}()
	if err := c.play(ctx, script(rand.New(rand.NewPCG(seed, 1)), during)); err != nil {
		stop(err)
	}
	<-churned
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.logf("All faults have ended")
	began := time.Now()
	w.settles(t, "after the last fault", calm, quiet, w.problems)
	w.logf("All is quiet after %s; %s", time.Since(began).Round(time.Second), w.guard.counts())
	// To move one of its pods restarts a whole group, so the machines of groups may be more expensive.
	if err := w.dissolveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settles(t, "after the groups are gone", calm, quiet, w.problems)
	machines := machinesOf(t, w)
	if b, err := w.bill(t.Context(), machines); err == nil {
		w.logf("By then %s", b)
	}
	if during >= long {
		if err := c.retry(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Consolidation works in steps, and retries failed ones after minutes.
		w.settles(t, "after the last fault, as to the price", calm, quiet, func(ctx context.Context) ([]problem, error) { return w.tooExpensive(ctx, machines) })
	}
	w.settles(t, "after the last fault, as to what can be launched", calm, 0, func(ctx context.Context) ([]problem, error) { return w.unpriced(ctx, machines), nil })
	b, err := w.bill(t.Context(), machines)
	if err != nil {
		t.Fatal(err)
	}
	w.logf("After %s %s; %s", time.Since(began).Round(time.Second), b, w.counts())
	if err := w.withdraw(t.Context(), standing); err != nil {
		t.Fatal(err)
	}
	if err := w.stayPut(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settles(t, "after pods are not to be moved any more", calm, time.Second, w.stillSteered)
	// While a pool is probed, its launches take two steps.
	if len(w.openBreakers(t.Context())) > 0 {
		w.grows(t, machines, false)
	}
	w.grows(t, machines, true)
	for _, breach := range w.guard.found() {
		t.Error(breach)
	}
	for _, line := range w.bugs(t) {
		t.Errorf("the controller says: %s", line)
	}
	if t.Failed() {
		t.Logf("KARVE_CHAOS_SEED=%d KARVE_CHAOS_DURATION=%s", seed, during)
	}
}

func settings(t *testing.T) (seed uint64, during time.Duration) {
	t.Helper()
	seed, during = usual, short
	var err error
	if s := os.Getenv("KARVE_CHAOS_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if s := os.Getenv("KARVE_CHAOS_DURATION"); s != "" {
		if during, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	return seed, during
}

// settles waits until nothing is wrong, and then that this stays so for a while.
func (w *world) settles(t *testing.T, when string, within, stays time.Duration, problems func(context.Context) ([]problem, error)) {
	t.Helper()
	var good time.Time
	var last []problem
	for began := time.Now(); time.Since(began) < within; {
		found, err := problems(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case len(found) > 0:
			good, last = time.Time{}, found
		case good.IsZero():
			good = time.Now()
		case time.Since(good) > stays:
			return
		}
		if err := smithytime.SleepWithContext(t.Context(), 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	for _, wrong := range last {
		fmt.Fprintf(&b, "  %s\n%s", wrong, w.eventsOf(t.Context(), wrong.name))
	}
	w.mu.Lock()
	timeline := strings.Join(w.timeline, "\n")
	w.mu.Unlock()
	t.Fatalf("the cluster has not settled within %s %s:\n%sThe timeline:\n%s", within, when, b.String(), timeline)
}

// problems returns what is wrong with the cluster once it should have settled.
func (w *world) problems(ctx context.Context) ([]problem, error) {
	p, err := w.picture(ctx)
	if err != nil {
		return nil, err
	}
	return p.problems(), nil
}

// tooExpensive is problems, and that the machines cost too much.
func (w *world) tooExpensive(ctx context.Context, machines cloud.Catalog) ([]problem, error) {
	if all, err := w.problems(ctx); err != nil || len(all) > 0 {
		return all, err
	}
	if unknown := w.unpriced(ctx, machines); len(unknown) > 0 {
		return unknown, nil
	}
	b, err := w.bill(ctx, machines)
	return b.problems(), err
}

// unpriced returns an error if the machines cannot be priced.
func (w *world) unpriced(ctx context.Context, machines cloud.Catalog) []problem {
	if _, err := w.bill(ctx, machines); err != nil {
		return []problem{{"Price", "of all machines", "is not known: " + err.Error()}}
	}
	return nil
}

// stillSteered is problems, and the Nodes that pods are still steered away from although nothing is to be moved.
func (w *world) stillSteered(ctx context.Context) ([]problem, error) {
	p, err := w.picture(ctx)
	if err != nil {
		return nil, err
	}
	return append(p.problems(), p.steered()...), nil
}

// bugs returns the lines of the controllers' logs that report a bug in Karve.
func (w *world) bugs(t *testing.T) []string {
	t.Helper()
	var bad []string
	for _, k := range w.controllers {
		log, err := os.ReadFile(w.Log(k.Name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			// A plan may leave out a tenant's pods, but no others.
			leftOut := strings.Contains(line, "no sound plan was found for") && strings.Contains(line, fmt.Sprintf(`"pod":"%s/`, namespace))
			if strings.HasPrefix(line, "panic:") || strings.Contains(line, "DATA RACE") || strings.Contains(line, "its own rules") || strings.Contains(line, "Observed a panic") || leftOut {
				bad = append(bad, strings.TrimSpace(line))
			}
		}
	}
	return bad
}
