package model

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/repair"
)

// stepTimes runs n turns with a pause after each.
func (w *world) stepTimes(n int, pause time.Duration) {
	for range n {
		if w.turn(); w.failure != "" {
			return
		}
		w.clock.Step(pause)
	}
}

// ends ends all faults and checks that everything settles.
func (w *world) ends(t *testing.T) {
	t.Helper()
	w.heal()
	if w.settles(); w.failure != "" {
		t.Errorf("%s\n%s", w.failure, strings.Join(w.trace, "\n"))
	}
}

// asks returns a world whose workloads want these numbers of pods.
func asks(web, large, squat int) *world {
	w := newWorld(1)
	w.desired["web"], w.desired["large"], w.desired["squat"] = web, large, squat
	return w
}

func TestStartupTaintThatStays(t *testing.T) {
	t.Parallel()
	w := asks(2, 0, 0)
	w.csiBroken = true
	w.stepTimes(10, 10*time.Second)
	w.ends(t)
}

func TestDebugPodOnBrokenMachine(t *testing.T) {
	t.Parallel()
	w := asks(2, 0, 0)
	w.pluginBroken = true
	w.stepTimes(10, 10*time.Second)
	w.anyNode(w.debug)
	w.ends(t)
}

// A user keeps a machine that died before it was initialized. It does not count against the disruption budget.
func TestUninitializedMachineBesideIdleOne(t *testing.T) {
	t.Parallel()
	w := asks(2, 0, 0)
	w.stepTimes(20, 10*time.Second)
	w.csiBroken, w.desired["web"] = true, 4
	w.stepTimes(10, 10*time.Second)
	for _, claim := range w.claims() {
		if h := w.hardware[claim.Name]; !h.clears {
			h.dead = true
			node := w.node(claim)
			node.Annotations[repair.DoNotRepair] = "true"
			w.ready(node, corev1.ConditionUnknown)
		}
	}
	w.desired["web"] = 0
	w.ends(t)
}
