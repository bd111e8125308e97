package disruption

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// greedy asks about the machines one after the other, each together with those that can be removed. It returns the answers and the machines that can be
// removed.
func greedy(ask func([]string) string, claims []string) (answers []string, going []string) {
	for _, claim := range claims {
		why := ask(append(slices.Clone(going), claim))
		answers = append(answers, why)
		if why == "" {
			going = append(going, claim)
		}
	}
	return answers, going
}

// marked marks the first n machines as being replaced.
func (s *simulation) marked(n int, word string) {
	for i := range n {
		s.cluster.NodeClaims[i].Annotations[v1alpha1.ReplacingAnnotation] = word
	}
}

// halfMarked returns a fleet of twelve machines with room for the pods of the six that are being replaced.
func halfMarked(t *testing.T, word string) *simulation {
	t.Helper()
	s := newSimulation(t, 0, 1, true, true)
	for range 12 {
		s.on("g4dn.xlarge", 2)
	}
	s.marked(6, word)
	return s
}

func TestFewPlansAnswerForManyMachines(t *testing.T) {
	t.Parallel()
	state := passOf(halfMarked(t, "Drifted").cluster)
	w := state.whatIf.(*whatIf)
	names := claimsOf(state.machines)[:6]
	w.expect(asIs, names)
	if _, going := greedy(w.place, names); len(going) != 6 {
		t.Errorf("%d of 6 machines have room elsewhere", len(going))
	}
	if plans := len(w.known); plans > 2 {
		t.Errorf("that took %d plans", plans)
	}
}

// TestBatchedQuestionsHaveSameAnswersAsSingleOnes checks that machines get the same answers together as one by one, with far fewer plans if most have room.
func TestBatchedQuestionsHaveSameAnswersAsSingleOnes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := newSimulation(t, 0, 1, true, true)
		for _, pods := range rapid.SliceOfN(rapid.IntRange(0, 10), 1, 12).Draw(r, "pods") {
			s.on(rapid.SampledFrom([]string{"g4dn.xlarge", "g4dn.12xlarge"}).Draw(r, "type"), pods)
		}
		q := rapid.SampledFrom([]question{asIs, asPlanned}).Draw(r, "question")
		if q == asIs {
			s.marked(len(s.cluster.NodeClaims), "Drifted")
		}
		ask := func(w *whatIf) func([]string) string {
			return func(claims []string) string { return w.displacedBy(q, claims) }
		}
		alone, together := passOf(s.cluster).whatIf.(*whatIf), passOf(s.cluster).whatIf.(*whatIf)
		names := rapid.Permutation(claimsOf(passOf(s.cluster).machines)).Draw(r, "order")
		together.expect(q, names)
		_, want := greedy(ask(alone), names)
		_, got := greedy(ask(together), names)
		if !slices.Equal(got, want) {
			r.Fatalf("together %v can be removed, one by one %v", got, want)
		}
	})
}

// A pass that has time for only one plan answers some of the questions. The next passes answer the others, whatever was refused before.
func TestQuestionsLeftForLackOfTimeAreAnsweredInLaterPasses(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 0, 1, true, true)
	for range 10 {
		s.on("g4dn.xlarge", perXlarge) // The machines are full, so no pod has room elsewhere.
	}
	s.on("g4dn.xlarge", 5)
	s.marked(11, "Drifted")
	memory, answered := &Memory{}, map[string]bool{}
	for range 12 {
		state := passOf(s.cluster)
		memory = memory.at(state.seen)
		state.whatIf.(*whatIf).more = func() bool { return false }
		r := memory.remember(&state.fleet, state.whatIf)
		names := claimsOf(state.machines)
		r.expect(asIs, names)
		answers, _ := greedy(r.place, names)
		for i, why := range answers {
			answered[names[i]] = answered[names[i]] || why != later
		}
	}
	for _, claim := range s.cluster.NodeClaims {
		if !answered[claim.Name] {
			t.Errorf("there was never time for %s", claim.Name)
		}
	}
}

func TestFewPlansConfirmMarksWhosePodsFitElsewhere(t *testing.T) {
	t.Parallel()
	state := passOf(halfMarked(t, "Underutilized").cluster)
	found := state.standing(verdicts{}, func() bool { return false })
	if plans := len(state.whatIf.(*whatIf).known); len(found.stand) != 6 || plans > 2 {
		t.Errorf("%d of 6 marks stand, after %d plans", len(found.stand), plans)
	}
}
