package quote_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/quote"
)

// TestSlotSizesWasteLeast tries all choices of sizes for few amounts.
func TestSlotSizesWasteLeast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pods := rapid.MapOfN(rapid.Int64Range(1, 30), rapid.Int64Range(1, 9), 1, 8).Draw(t, "pods")
		most := rapid.IntRange(1, 8).Draw(t, "most")
		sizes := quote.SlotSizes(pods, most)
		amounts := slices.Sorted(maps.Keys(pods))
		if len(sizes) == 0 || len(sizes) > most || !slices.IsSorted(sizes) || sizes[len(sizes)-1] != amounts[len(amounts)-1] {
			t.Fatalf("the sizes are %v, of at most %d", sizes, most)
		}
		got := unusedWith(pods, sizes)
		for set := range 1 << len(amounts) {
			var others []int64
			for i, amount := range amounts {
				if set&(1<<i) != 0 {
					others = append(others, amount)
				}
			}
			if len(others) == 0 || len(others) > most || others[len(others)-1] != amounts[len(amounts)-1] {
				continue
			}
			if want := unusedWith(pods, others); want < got {
				t.Fatalf("%v leave %d unused, and %v leave %d", sizes, got, others, want)
			}
		}
	})
}

func unusedWith(pods map[int64]int64, sizes []int64) (sum int64) {
	for amount, n := range pods {
		at, _ := slices.BinarySearch(sizes, amount)
		sum += n * (sizes[at] - amount)
	}
	return sum
}
