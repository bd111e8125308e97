package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// TestStepsAreTakenOnceWasteHasPaidForTheirRestarts has twelve pods on a g4dn.2xlarge and a g4dn.xlarge ($1.278 an hour), which fit on two g4dn.xlarge ($1.052).
func TestStepsAreTakenOnceWasteHasPaidForTheirRestarts(t *testing.T) {
	t.Parallel()
	for restart, free := range map[string]bool{"": false, "0.01": false, "0.1": false, "0": true} {
		t.Run("restartCost "+restart, func(t *testing.T) {
			t.Parallel()
			s := newSimulation(t, 0, 1, true, true)
			s.cluster.GPUNodeClasses[0].Spec.Consolidation.RestartCost = restart
			const onLarge = 6
			s.on("g4dn.2xlarge", onLarge)
			s.on("g4dn.xlarge", 6)
			s.cluster.Now = s.cluster.Now.Add(time.Hour)
			began := s.cluster.Now
			marked := func() bool {
				return slices.ContainsFunc(s.cluster.NodeClaims, func(c karpv1.NodeClaim) bool { return c.Annotations[v1alpha1.ReplacingAnnotation] != "" })
			}
			for !marked() && s.cluster.Now.Before(began.Add(24*time.Hour)) {
				s.cluster.Now = s.cluster.Now.Add(settle)
				s.decides()
			}
			cost, err := s.cluster.GPUNodeClasses[0].Spec.Consolidation.RestartMicroUSD()
			if err != nil {
				t.Fatal(err)
			}
			const saving = 752_000 - 526_000
			want := time.Duration(float64(cost*onLarge) / saving * float64(time.Hour))
			want += max(0, want/2-time.Hour) // The step is known once its pods have run for half of that.
			if took := s.cluster.Now.Sub(began); took < want || took > want+time.Minute || free && took > 2*settle {
				t.Errorf("the step begins after %s, want %s", took, want)
			}
			if !s.settles() {
				t.Fatalf("the simulation does not settle:\n%s", s)
			}
			if price := s.price(); price != 2*526_000 {
				t.Errorf("the machines cost %d in the end, want 1052000:\n%s", price, s)
			}
		})
	}
}

// statusWriter is a client that records the wastes that are written, or fails.
type statusWriter struct {
	client.Client
	written []*v1alpha1.Waste
	fails   error
}

func (w *statusWriter) Status() client.SubResourceWriter { return statusPatches{w: w} }

type statusPatches struct {
	client.SubResourceWriter
	w *statusWriter
}

func (p statusPatches) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	if p.w.fails != nil {
		return p.w.fails
	}
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	var class v1alpha1.GPUNodeClass
	if err := json.Unmarshal(data, &class); err != nil {
		return err
	}
	p.w.written = append(p.w.written, class.Status.Waste)
	return nil
}

// looks runs one look of a controller, some time after the last one.
func (s *simulation) looks(t *testing.T, c *Controller, after time.Duration) (*pass, []command, error) {
	t.Helper()
	s.cluster.Now = s.cluster.Now.Add(after)
	c.Clock.(*clocktesting.FakeClock).SetTime(s.cluster.Now)
	state := s.seen()
	state.settle = 0
	c.memory.keep(state)
	c.consider(state)
	commands, _, err := c.cheaper(t.Context(), state, longestWait)
	return state, commands, err
}

// waits runs looks of a controller, some time after each other, in which no step begins.
func (s *simulation) waits(t *testing.T, c *Controller, looks int, after time.Duration) {
	t.Helper()
	for range looks {
		if _, commands, err := s.looks(t, c, after); err != nil || len(commands) > 0 {
			t.Fatalf("%d commands, %v", len(commands), err)
		}
	}
}

func accountant(s *simulation, w *statusWriter) *Controller {
	c := controllerWith(clocktesting.NewFakeClock(s.cluster.Now), prometheus.NewRegistry())
	c.Client = w
	return c
}

// withRestartsAt returns two machines that have been half empty for an hour. Moving the pods of one costs an hour of it.
func withRestartsAt(t *testing.T) *simulation {
	t.Helper()
	s := halfEmpty(t)
	s.cluster.GPUNodeClasses[0].Spec.Consolidation.RestartCost = "0.1"
	s.cluster.Now = s.cluster.Now.Add(time.Hour)
	return s
}

func TestAccountIsWrittenOnceAMinuteAndBeforeItPays(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	w := &statusWriter{}
	c := accountant(s, w)
	begun := 0
	for range 6 * 70 {
		_, commands, err := s.looks(t, c, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if begun += len(commands); begun > 0 {
			break
		}
	}
	last := w.written[len(w.written)-1]
	if begun != 1 || last != nil {
		t.Errorf("%d machines are marked, and the account has %+v, want one and an empty account", begun, last)
	}
	before := w.written[len(w.written)-2]
	if len(before.Steps) != 1 || before.Steps[0].Pods != 5 || before.Steps[0].RestartUSD != "0.500" || before.Steps[0].USDPerHour != "0.526" || before.USDPerHour != "0.526" {
		t.Errorf("before that it has %+v", before)
	}
	if minutes := 0.5 / 0.526 * 60; math.Abs(float64(len(w.written))-minutes) > 4 {
		t.Errorf("it was written %d times in %.0f minutes", len(w.written), minutes)
	}
}

func TestStepDoesNotBeginIfItsPaymentIsNotWritten(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	w := &statusWriter{}
	c := accountant(s, w)
	s.waits(t, c, 55, time.Minute)
	w.fails = errors.New("no")
	for range 10 {
		if _, commands, err := s.looks(t, c, time.Minute); err == nil || len(commands) > 0 {
			t.Fatalf("%d commands although the account cannot be written (%v)", len(commands), err)
		}
	}
	w.fails = nil
	if _, commands, err := s.looks(t, c, time.Second); err != nil || len(commands) != 1 {
		t.Fatalf("%d steps once it can be written, %v", len(commands), err)
	}
}

func TestAccountSurvivesRestart(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	w := &statusWriter{}
	c := accountant(s, w)
	s.waits(t, c, 31, time.Minute)
	s.cluster.GPUNodeClasses[0].Status.Waste = w.written[len(w.written)-1]
	kept := c.memory.accounts["gpu-shared"].Wasted
	if kept < 526_000*29/60 || kept > 526_000*31/60 {
		t.Fatalf("%d were wasted in half an hour", kept)
	}
	c = accountant(s, w)
	// The time without a controller does not count.
	state, commands, err := s.looks(t, c, 10*time.Hour)
	if got := state.accounts["gpu-shared"].Wasted; err != nil || len(commands) > 0 || got > kept || got < kept-526_000/60 {
		t.Fatalf("after the restart %d are wasted (%v), and %d steps begin; before it were %d", got, err, len(commands), kept)
	}
	minutes := 0
	for ; minutes < 60 && len(commands) == 0; minutes++ {
		if _, commands, err = s.looks(t, c, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if want := 0.5/0.526*60 - 30; math.Abs(float64(minutes)-want) > 3 {
		t.Errorf("the step begins %d minutes after the restart, want %.0f", minutes, want)
	}
}

func TestAccountIsEmptyOnceNothingCanBeSaved(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	w := &statusWriter{}
	c := accountant(s, w)
	s.waits(t, c, 20, time.Minute)
	if c.memory.accounts["gpu-shared"].Wasted == 0 {
		t.Fatal("nothing was wasted")
	}
	for range 5 {
		s.pod()
		snapshottest.Running(s.cluster.Nodes[1].Name)(&s.cluster.Pods[len(s.cluster.Pods)-1])
	}
	s.waits(t, c, 3, time.Minute)
	if a := c.memory.accounts["gpu-shared"]; a.Wasted != 0 || w.written[len(w.written)-1] != nil {
		t.Errorf("the account has %d, and %+v is written", a.Wasted, w.written[len(w.written)-1])
	}
}

func TestStepWaitsIfItsPodsAreOthers(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	state := s.seen()
	m := state.machines[0]
	m.Proposed = true
	p := proposal{claims: []string{m.Claim.Name}}
	if state.ready(p) != nil {
		t.Error("a step is ready that counts none of the pods")
	}
	for _, pod := range m.Moving() {
		p.pods = append(p.pods, podName(pod))
	}
	slices.Sort(p.pods)
	if state.ready(p) == nil {
		t.Error("a step with these pods is not ready")
	}
}

func TestClassesShareAStepByWhatTheirRestartsCost(t *testing.T) {
	t.Parallel()
	p := proposal{saving: 101, restarts: map[string]planner.MicroUSD{"a": 10, "b": 30}}
	if got := p.shares(); got["a"] != 25 || got["b"] != 76 {
		t.Errorf("shares %v", got)
	}
	s := &pass{accounts: map[string]account{"a": {Account: consolidate.Account{Wasted: 10}}, "b": {Account: consolidate.Account{Wasted: 29}}}}
	if s.covers(p, nil) {
		t.Error("a step is covered although one class has too little")
	}
	s.accounts["b"] = account{Account: consolidate.Account{Wasted: 30, Saving: 100}}
	if !s.covers(p, nil) {
		t.Error("a step is not covered although both classes have enough")
	}
	if s.covers(p, map[string]bool{"b": true}) {
		t.Error("a step is covered by a class that saves up for another")
	}
	s.pay(p)
	if a, b := s.accounts["a"], s.accounts["b"]; a.Wasted != 0 || b.Wasted != 0 || b.Saving != 24 {
		t.Errorf("after the payment the accounts have %+v and %+v", a, b)
	}
	if free := (proposal{saving: 5, restarts: map[string]planner.MicroUSD{"a": 0}}).shares(); free["a"] != 5 {
		t.Errorf("shares of a free step %v", free)
	}
}
