package records

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
)

func TestTakeEvenlyMatchesTakingReplicasOneByOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var gpus []planner.GPU
		for range rapid.IntRange(0, 5).Draw(t, "GPUs") {
			gpus = append(gpus, planner.GPU{Replicas: rapid.Int64Range(0, 6).Draw(t, "replicas"), MemoryBytes: rapid.Int64Range(0, 2).Draw(t, "memory")})
		}
		replicas := rapid.Int64Range(0, 20).Draw(t, "taken")
		want := slices.Clone(gpus)
		for range replicas {
			if on := roomiest(want); on >= 0 {
				want[on].Replicas--
			}
		}
		takeEvenly(gpus, replicas)
		if !slices.Equal(gpus, want) {
			t.Fatalf("%v are left, want %v", gpus, want)
		}
	})
}
