package disruption

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/planner"
)

// begins advances the clock, runs one look of the controller, and returns why it does not start a step with the first machine although that would save money.
func (s *simulation) begins(c *Controller, after time.Duration) string {
	s.cluster.Now = s.cluster.Now.Add(after)
	state := s.seen()
	state.fakeWhatIf().saves_ = func([]string, proposal) (planner.MicroUSD, string) { return 1, "" }
	c.memory.keep(state)
	c.consider(state)
	p := proposal{claims: []string{s.cluster.NodeClaims[0].Name}}
	_, why := remembering{simulator: state.whatIf, s: state, memory: &c.memory, metrics: c.Metrics}.saves(nil, p)
	if why == "" {
		c.begin(state, p)
	}
	return why
}

func TestStepWithoutSavingIsRetriedWithBackoff(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	c := controllerWith(clocktesting.NewFakeClock(s.cluster.Now), prometheus.NewRegistry())
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
			c := controllerWith(clocktesting.NewFakeClock(s.cluster.Now), prometheus.NewRegistry())
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
	c := controllerWith(clocktesting.NewFakeClock(s.cluster.Now), prometheus.NewRegistry())
	if why := s.begins(c, 0); why != "" {
		t.Fatal(why)
	}
	last := c.memory.pools["gpu-shared"].attempt
	last.fleet.price++
	for _, settled := range []bool{false, true} {
		again := s
		if !settled {
			again = halfEmpty(t)
			again.interrupt(again.cluster.NodeClaims[0].Name)
		}
		if last.worked(again.seen(), "gpu-shared") != settled {
			t.Errorf("worked is not %t: %v", settled, last)
		}
	}
}
