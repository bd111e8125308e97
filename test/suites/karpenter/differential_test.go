package karpenter_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/test/harness/karpenter"
)

// unplaced returns the pods that a plan leaves unplaced.
func unplaced(p planner.Plan) map[string]bool {
	out := map[string]bool{}
	for _, x := range p.Unplaced {
		out[x.Pod] = true
	}
	return out
}

// limited reports whether the limits of a pool could keep a pod from being placed.
func limited(s planner.Snapshot) bool {
	return slices.ContainsFunc(s.Pools, func(p planner.Pool) bool {
		r := p.Remaining
		return min(r.MilliCPU, r.MemoryBytes, r.GPUs, r.Replicas, r.Nodes) < planner.Unlimited
	})
}

// weighed reports whether the pools differ in weight. Karve then launches a pod's machine from the heaviest pool that can have one, even if a machine on order
// from a lighter pool has room. Karpenter looks at weights only if no machine on order has room.
func weighed(s planner.Snapshot) bool {
	return slices.ContainsFunc(s.Pools, func(p planner.Pool) bool { return p.Weight != s.Pools[0].Weight })
}

// plentiful returns the pods for which machines can be launched as long as no limit is reached. The other pods compete for nodes, and either planner may give
// the room to any of them.
func plentiful(s planner.Snapshot) map[string]bool {
	out := map[string]bool{}
	for _, c := range s.Classes {
		if slices.ContainsFunc(c.Offerings, func(i int) bool {
			return s.Offerings[i].Unavailable == nil && holds(s.Offerings[i].Free, c.Requests)
		}) {
			for _, pod := range c.Pods {
				out[pod] = true
			}
		}
	}
	return out
}

func holds(free, r planner.Resources) bool {
	return r.MilliCPU <= free.MilliCPU && r.MemoryBytes <= free.MemoryBytes && r.EphemeralBytes <= free.EphemeralBytes &&
		r.Pods <= free.Pods && r.Replicas <= free.Replicas
}

func TestKarvePlacesWhatKarpenterPlacesAtNoHigherPrice(t *testing.T) {
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
				ours := solve.Solver{Effort: 100_000}.Plan(d.Snapshot)
				if err := check.Plan(d.Snapshot, ours); err != nil {
					t.Fatal(err)
				}
				if len(ours.Unplaced) > len(theirs.Unplaced) {
					t.Errorf("Karpenter leaves out %d pods, Karve %d", len(theirs.Unplaced), len(ours.Unplaced))
				}
				left, launchable := unplaced(theirs), plentiful(d.Snapshot)
				for _, x := range ours.Unplaced {
					if !limited(d.Snapshot) && launchable[x.Pod] && !left[x.Pod] {
						t.Errorf("Karpenter places %s, Karve does not: %s", x.Pod, x.Message)
					}
				}
				if len(ours.Unplaced) == len(theirs.Unplaced) && !weighed(d.Snapshot) && ours.Price > theirs.Price {
					t.Errorf("Karpenter pays %d, Karve %d, for as many pods", theirs.Price, ours.Price)
				}
			})
		})
	}
}
