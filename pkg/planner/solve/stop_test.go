package solve_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
)

// A search may be stopped at any time. The plan is still valid, and the search asks few further questions, each of which takes some work.
func TestSearchStopsSoonWithValidPlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anyRules.Draw(t, "snapshot")
		questions := rapid.IntRange(0, 60).Draw(t, "questions")
		asked := 0
		p := solve.Solver{Stop: func() bool { asked++; return asked > questions }}.Plan(s)
		if err := check.Plan(s, alternatives.Add(s, p)); err != nil {
			t.Fatalf("stopped after %d questions: %v", questions, err)
		}
		size := len(s.Rules) + len(s.Nodes)
		for _, c := range s.Classes {
			size += 1 + len(c.Pods) + len(c.Preferences)
		}
		if after := asked - questions; after > 100*(size+1) {
			t.Fatalf("asked %d times more after the end, for a size of %d", after, size)
		}
	})
}

// TestWorkGrowsLinearlyWithClassesWithRules checks that the work without any search time grows almost linearly with the number of classes, not quadratically.
// It counts allocated bytes as a measure of the work.
func TestWorkGrowsLinearlyWithClassesWithRules(t *testing.T) { // Not parallel: it measures allocations.
	for name, of := range map[string]func(int) planner.Snapshot{"rules of their own": tenants, "classes that share machines": companions} {
		cost := func(classes int) float64 {
			s := of(classes)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			p := solve.Solver{Stop: func() bool { return true }}.Plan(s)
			runtime.ReadMemStats(&after)
			if err := check.Plan(s, alternatives.Add(s, p)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return float64(after.TotalAlloc - before.TotalAlloc)
		}
		if one, two := cost(400), cost(800); two > 3*one {
			t.Errorf("%s: 400 classes cost %.1f MB, 800 cost %.1f MB", name, one/1e6, two/1e6)
		}
	}
}

// companions returns tenants in which every other class has to share a machine with the class before it.
func companions(classes int) planner.Snapshot {
	s := tenants(classes)
	s.Rules = nil
	for c := 1; c < classes; c += 2 {
		s.Rules = append(s.Rules, planner.Rule{Kind: planner.Together, Name: fmt.Sprint("with ", c-1), Topology: planner.PerNode, Classes: []int{c}, Counted: []int{c - 1}})
	}
	return s
}

func TestPodsLeftOutForLackOfTimeGetReasonNextRound(t *testing.T) {
	t.Parallel()
	s := companions(100)
	p := solve.Solver{Stop: func() bool { return true }}.Plan(s)
	late := func(u planner.Unplaced) bool { return u.Reason == planner.ReasonNextRound }
	if !slices.ContainsFunc(p.Unplaced, late) || slices.ContainsFunc(p.Unplaced, func(u planner.Unplaced) bool { return !late(u) }) {
		t.Errorf("%d unplaced, the first: %v", len(p.Unplaced), p.Unplaced[:min(1, len(p.Unplaced))])
	}
	if len(p.Launches) == 0 {
		t.Error("nothing is launched")
	}
}
