package disruption

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// settled runs rounds until nothing happens for twelve minutes, longer than the back-off of a step, and reports whether that was so. The controller forgets everything before the rounds for
// which forgets returns true. A round follows when the last one asked for it, or after a change.
func (w *roundsWorld) settled(forgets func(round int) bool) bool {
	quiet := time.Duration(0)
	for i := range 500 {
		if forgets(i) {
			w.memory = Memory{}
		}
		w.log = nil
		again := w.round()
		w.others()
		again = max(again, time.Second)
		if w.changed() || w.pending() {
			again, quiet = min(again, settle), 0
		}
		w.cluster.Now = w.cluster.Now.Add(again)
		if quiet += again; quiet > 12*time.Minute {
			return true
		}
	}
	return false
}

// changed reports whether something was done since the log was cleared.
func (w *roundsWorld) changed() bool {
	return slices.ContainsFunc(w.log, func(line string) bool {
		return !strings.HasPrefix(line, string(Stay)) && !strings.HasPrefix(line, string(Blocked))
	})
}

// pending reports whether pods wait or machines are on their way.
func (w *roundsWorld) pending() bool {
	for i := range w.cluster.Pods {
		if w.cluster.Pods[i].Spec.NodeName == "" {
			return true
		}
	}
	return len(w.waiting())+len(w.deleting()) > 0
}

// TestRestartAtAnyStepLeadsToSameEnd drops the memory before any rounds: the machines, their pods and their price are the same in the end, and no mark is left.
func TestRestartAtAnyStepLeadsToSameEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pods := rapid.SliceOfN(rapid.IntRange(0, perXlarge), 1, 4).Draw(t, "pods")
		budget, drifts := rapid.IntRange(1, 3).Draw(t, "budget"), rapid.Bool().Draw(t, "drifts")
		policy := rapid.SampledFrom([]v1alpha1.ConsolidationPolicy{v1alpha1.ConsolidateWhenIdle, ""}).Draw(t, "policy")
		often := rapid.IntRange(1, 5).Draw(t, "one in so many rounds follows a restart")
		ends := func(forgets func(int) bool) string {
			w := newRoundsWorld(t)
			w.budget = budget
			w.pooled(options{"budget": fmt.Sprint(budget)})
			w.cluster.GPUNodeClasses[0].Spec.Consolidation = v1alpha1.Consolidation{IdleAfter: "1m", RestartCost: "0.001", Policy: policy}
			for i, n := range pods {
				name := string(rune('a' + i))
				w.adds(name, "g4dn.xlarge", options{})
				w.runs(n, name, options{})
			}
			if drifts {
				w.drift()
			}
			if !w.settled(forgets) {
				t.Fatalf("it does not settle: %s", w.state())
			}
			for _, m := range w.machines() {
				if m.Replacing() != "" || Disrupting(&m) {
					t.Fatalf("a mark is left: %s", w.state())
				}
			}
			return w.state()
		}
		draws := rapid.SliceOfN(rapid.IntRange(1, often), 60, 60).Draw(t, "restarts")
		want := ends(func(int) bool { return false })
		if got := ends(func(round int) bool { return round < len(draws) && draws[round] == 1 }); got != want {
			t.Fatalf("with restarts %s, without %s", got, want)
		}
	})
}

// TestRoundIsFunctionOfItsInput checks that a round changes neither what was seen nor the memory, and that it has one answer.
func TestRoundIsFunctionOfItsInput(t *testing.T) {
	t.Parallel()
	w := newRoundsWorld(t)
	for i, n := range []int{3, 4, 0, 10, 6} {
		name := string(rune('a' + i))
		w.adds(name, "g4dn.xlarge", options{})
		w.runs(n, name, options{})
	}
	for round := range 30 {
		if round == 10 {
			w.drift()
		}
		seen, memory := w.see(), w.memory
		var answers []string
		for range 3 {
			commands, _ := Next(seen, memory, Limits{Effort: simulatedEffort})
			answer := []string{fmt.Sprint(commands.Again, commands.Wasted, len(commands.Accounts), len(commands.Steer))}
			for _, c := range commands.Steps {
				answer = append(answer, describe(c))
			}
			answers = append(answers, strings.Join(answer, "; "))
		}
		if answers[0] != answers[1] || answers[1] != answers[2] {
			t.Fatalf("round %d has the answers %q", round, answers)
		}
		w.round()
		w.others()
		w.cluster.Now = w.cluster.Now.Add(settle)
	}
}
