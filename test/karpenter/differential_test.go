package karpenter_test

import (
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/test/karpenter"
)

// unplaced are the pods that a plan has no place for.
func unplaced(p planner.Plan) map[string]bool {
	out := map[string]bool{}
	for _, x := range p.Unplaced {
		out[x.Pod] = true
	}
	return out
}

// limited reports whether a limit of a pool could keep a pod from its place.
func limited(s planner.Snapshot) bool {
	for _, p := range s.Pools {
		r := p.Remaining
		if min(r.MilliCPU, r.MemoryBytes, r.GPUs, r.Replicas, r.Nodes) < planner.Unlimited {
			return true
		}
	}
	return false
}

func TestKarveTakesWhatKarpenterTakesAndIsNeverDearer(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]size{"few": {20, 4, 2}, "some": {120, 8, 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				d := draw(t, most)
				theirs, _, err := karpenter.Plan(t.Context(), d.Snapshot, d.nodeOf)
				if err != nil {
					t.Fatal(err)
				}
				ours := planner.Search{Effort: 100_000}.Build(d.Snapshot)
				if err := planner.Check(d.Snapshot, ours); err != nil {
					t.Fatal(err)
				}
				// Limits leave a choice of the pods that go without, but not more of them.
				if left := unplaced(theirs); !limited(d.Snapshot) {
					for _, x := range ours.Unplaced {
						if !left[x.Pod] {
							t.Errorf("Karpenter places %s, Karve does not: %s", x.Pod, x.Message)
						}
					}
				} else if len(ours.Unplaced) > len(left) {
					t.Errorf("Karpenter leaves out %d pods, Karve %d", len(left), len(ours.Unplaced))
				}
				if len(ours.Unplaced) == len(theirs.Unplaced) && ours.Price > theirs.Price {
					t.Errorf("Karpenter pays %d, Karve %d, for as many pods", theirs.Price, ours.Price)
				}
			})
		})
	}
}
