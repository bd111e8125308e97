package disruption

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func named(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("m-%04d", i))
	}
	return names
}

func TestSmallFleetIsOneSlice(t *testing.T) {
	t.Parallel()
	var r rounds
	for _, n := range []int{0, 1, slice, 3, slice} {
		if got, ends := r.next(named(n)); !slices.Equal(got, named(n)) || !ends {
			t.Errorf("the slice of %d machines has %d, and ends the round: %t", n, len(got), ends)
		}
	}
}

func TestRoundCoversEachMachineOnceInEqualSlices(t *testing.T) {
	t.Parallel()
	var r rounds
	all := named(4*slice + 3)
	together := map[string]int{} // how often a machine shared a slice with the first one
	for range 20 {
		visits := map[string]int{}
		for k := range 5 {
			got, ends := r.next(all)
			if len(got) < len(all)/5 || len(got) > slice || ends != (k == 4) {
				t.Fatalf("slice %d of a round has %d of %d machines, and ends it: %t", k, len(got), len(all), ends)
			}
			for _, name := range got {
				visits[name]++
				if slices.Contains(got, all[0]) {
					together[name]++
				}
			}
		}
		for _, name := range all {
			if visits[name] != 1 {
				t.Fatalf("%s is visited %d times in a round", name, visits[name])
			}
		}
	}
	if len(together) < len(all)*9/10 {
		t.Errorf("after 20 rounds, %d of %d machines were in a slice with the first one", len(together), len(all))
	}
}

// TestRoundsCoverRemainingMachineWithinTwoRounds checks that, whichever machines come and go, a machine that stays is visited within two rounds, and that a
// slice is never empty nor larger than a search can handle.
func TestRoundsCoverRemainingMachineWithinTwoRounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r rounds
		stays := rapid.SampledFrom(named(40)).Draw(t, "stays")
		missed, most := 0, 1
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			begin, n := rapid.IntRange(0, 2000).Draw(t, "first"), rapid.IntRange(0, 1500).Draw(t, "machines")
			fleet := append(slices.DeleteFunc(named(begin + n)[begin:], func(name string) bool { return name == stays }), stays)
			slices.Sort(fleet)
			most = max(most, (len(fleet)+slice-1)/slice)
			got, _ := r.next(fleet)
			if len(got) == 0 || len(got) > slice {
				t.Fatalf("a slice of %d machines has %d", len(fleet), len(got))
			}
			if slices.Contains(got, stays) {
				missed = 0
				continue
			}
			if missed++; missed > 2*most+1 {
				t.Fatalf("%s is not visited in %d looks at up to %d slices", stays, missed, most)
			}
		}
	})
}
