package facts_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func TestPodsUpToTheBoundAreKeptWhole(t *testing.T) {
	t.Parallel()
	pod := snapshottest.Pod("p")
	pod.Spec.Tolerations[0].Key += strings.Repeat("x", facts.MaxBytes-facts.MemoryOf(facts.Placement(&pod.Spec)))
	if facts.Bounded(&pod) != &pod {
		t.Error("a pod of exactly the bound is changed")
	}
	pod.Spec.Tolerations[0].Key += "x"
	if facts.TooLarge(facts.Bounded(&pod)) == "" {
		t.Error("a pod of one byte more is kept")
	}
}
