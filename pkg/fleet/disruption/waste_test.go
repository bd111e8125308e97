package disruption

import (
	"math"
	"slices"
	"testing"
	"time"

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
	k := &keeper{}
	begun := 0
	for range 6 * 70 {
		commands, _ := s.looks(k, 10*time.Second)
		if begun += len(commands); begun > 0 {
			break
		}
	}
	last := k.written[len(k.written)-1]
	if begun != 1 || last != nil {
		t.Errorf("%d machines are marked, and the account has %+v, want one and an empty account", begun, last)
	}
	before := k.written[len(k.written)-2]
	if len(before.Steps) != 1 || before.Steps[0].Pods != 5 || before.Steps[0].RestartUSD != "0.500" || before.Steps[0].USDPerHour != "0.526" || before.USDPerHour != "0.526" {
		t.Errorf("before that it has %+v", before)
	}
	if minutes := 0.5 / 0.526 * 60; math.Abs(float64(len(k.written))-minutes) > 4 {
		t.Errorf("it was written %d times in %.0f minutes", len(k.written), minutes)
	}
}

func TestStepDoesNotBeginIfItsPaymentIsNotWritten(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	k := &keeper{}
	s.waits(t, k, 55, time.Minute)
	k.fails = true
	for range 10 {
		if commands, ok := s.looks(k, time.Minute); ok || len(commands) > 0 {
			t.Fatalf("%d commands although the account cannot be written (%t)", len(commands), ok)
		}
	}
	k.fails = false
	if commands, ok := s.looks(k, time.Second); !ok || len(commands) != 1 {
		t.Fatalf("%d steps once it can be written, %t", len(commands), ok)
	}
}

func TestAccountSurvivesRestart(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	k := &keeper{}
	s.waits(t, k, 31, time.Minute)
	s.cluster.GPUNodeClasses[0].Status.Waste = k.written[len(k.written)-1]
	kept := k.memory.accounts["gpu-shared"].Wasted
	if kept < 526_000*29/60 || kept > 526_000*31/60 {
		t.Fatalf("%d were wasted in half an hour", kept)
	}
	k = &keeper{}
	// The time without a controller does not count.
	commands, _ := s.looks(k, 10*time.Hour)
	if got := k.memory.accounts["gpu-shared"].Wasted; len(commands) > 0 || got > kept || got < kept-526_000/60 {
		t.Fatalf("after the restart %d are wasted, and %d steps begin; before it were %d", got, len(commands), kept)
	}
	minutes := 0
	for ; minutes < 60 && len(commands) == 0; minutes++ {
		commands, _ = s.looks(k, time.Minute)
	}
	if want := 0.5/0.526*60 - 30; math.Abs(float64(minutes)-want) > 3 {
		t.Errorf("the step begins %d minutes after the restart, want %.0f", minutes, want)
	}
}

func TestAccountIsEmptyOnceNothingCanBeSaved(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	k := &keeper{}
	s.waits(t, k, 20, time.Minute)
	if k.memory.accounts["gpu-shared"].Wasted == 0 {
		t.Fatal("nothing was wasted")
	}
	for range 5 {
		s.pod()
		snapshottest.Running(s.cluster.Nodes[1].Name)(&s.cluster.Pods[len(s.cluster.Pods)-1])
	}
	s.waits(t, k, 3, time.Minute)
	if a := k.memory.accounts["gpu-shared"]; a.Wasted != 0 || k.written[len(k.written)-1] != nil {
		t.Errorf("the account has %d, and %+v is written", a.Wasted, k.written[len(k.written)-1])
	}
}

func TestStepWaitsIfItsPodsAreOthers(t *testing.T) {
	t.Parallel()
	s := withRestartsAt(t)
	state := over(s.seen())
	b := beginning{decider: state.decider}
	m := state.machines[0]
	m.Proposed = true
	p := Proposal{Claims: []string{m.Claim.Name}}
	if b.ready(p) != nil {
		t.Error("a step is ready that counts none of the pods")
	}
	for _, pod := range m.Moving() {
		p.Pods = append(p.Pods, podName(pod))
	}
	slices.Sort(p.Pods)
	if b.ready(p) == nil {
		t.Error("a step with these pods is not ready")
	}
}

func TestClassesShareAStepByWhatTheirRestartsCost(t *testing.T) {
	t.Parallel()
	p := Proposal{Saving: 101, Restarts: map[string]planner.MicroUSD{"a": 10, "b": 30}}
	if got := p.shares(); got["a"] != 25 || got["b"] != 76 {
		t.Errorf("shares %v", got)
	}
	accounts := Accounts{"a": {Account: consolidate.Account{Wasted: 10}}, "b": {Account: consolidate.Account{Wasted: 29}}}
	if accounts.covers(p, nil) {
		t.Error("a step is covered although one class has too little")
	}
	accounts["b"] = Account{Account: consolidate.Account{Wasted: 30, Saving: 100}}
	if !accounts.covers(p, nil) {
		t.Error("a step is not covered although both classes have enough")
	}
	if accounts.covers(p, map[string]bool{"b": true}) {
		t.Error("a step is covered by a class that saves up for another")
	}
	accounts.pay(p)
	if a, b := accounts["a"], accounts["b"]; a.Wasted != 0 || b.Wasted != 0 || b.Saving != 24 {
		t.Errorf("after the payment the accounts have %+v and %+v", a, b)
	}
	if free := (Proposal{Saving: 5, Restarts: map[string]planner.MicroUSD{"a": 0}}).shares(); free["a"] != 5 {
		t.Errorf("shares of a free step %v", free)
	}
}
