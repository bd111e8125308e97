package disruption

import (
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/planner"
)

// begins advances the clock, runs one round, and returns why it does not start a step with the first machine although that would save money.
func (s *simulation) begins(k *keeper, after time.Duration) string {
	s.cluster.Now = s.cluster.Now.Add(after)
	state := over(s.seen())
	m := k.memory.at(state.seen)
	state.fakeWhatIf().saves_ = func([]string, Proposal) (planner.MicroUSD, string) { return 1, "" }
	sim := m.remember(&state.fleet, state.whatIf)
	m.recall(&state.fleet, sim, Limits{})
	p := Proposal{Claims: []string{s.cluster.NodeClaims[0].Name}}
	_, why := sim.saves(nil, p)
	if why == "" {
		m.attempt(&state.fleet, p)
	}
	k.memory = *m
	return why
}

func TestStepWithoutSavingIsRetriedWithBackoff(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	c := &keeper{}
	for i, after := range []time.Duration{0, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute} {
		if i > 0 {
			if why := s.begins(c, after-time.Minute); !strings.Contains(why, "did not make the machines of NodePool gpu-shared cheaper") {
				t.Errorf("step %d is begun too early: %q", i, why)
			}
			after = time.Minute
		}
		if why := s.begins(c, after); why != "" {
			t.Errorf("step %d is not begun: %s", i, why)
		}
	}
}

func TestStepAfterSuccessfulOneBeginsAtOnce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*simulation){
		"more pods": func(s *simulation) { s.on("g4dn.xlarge", 1) },
		"the same pods on fewer machines": func(s *simulation) {
			for i := range s.cluster.Pods {
				s.cluster.Pods[i].Spec.NodeName = s.cluster.Nodes[0].Name
			}
			s.drain(s.cluster.NodeClaims[1].Name)
		},
		"a machine is leaving": func(s *simulation) { s.interrupt(s.cluster.NodeClaims[1].Name) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := halfEmpty(t)
			c := &keeper{}
			if why := s.begins(c, 0); why != "" {
				t.Fatal(why)
			}
			change(s)
			if why := s.begins(c, time.Minute); why != "" {
				t.Errorf("it is not begun: %s", why)
			}
		})
	}
}

func TestAttemptWorkedOnceFleetIsCheaperAndSettled(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	c := &keeper{}
	if why := s.begins(c, 0); why != "" {
		t.Fatal(why)
	}
	last := c.memory.pools["gpu-shared"].attempt
	last.residents.price++
	for _, settled := range []bool{false, true} {
		again := s
		if !settled {
			again = halfEmpty(t)
			again.interrupt(again.cluster.NodeClaims[0].Name)
		}
		if now := again.seen(); last.worked(now.residents("gpu-shared")) != settled {
			t.Errorf("worked is not %t: %v", settled, last)
		}
	}
}
