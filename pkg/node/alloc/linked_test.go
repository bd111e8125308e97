package alloc_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
)

// board returns the UUIDs of a machine's GPUs and the scores of their connections.
func board(s nvmltest.State) (gpus []string, score func(a, b string) int) {
	scores := map[[2]string]int{}
	for _, d := range s.Devices {
		gpus = append(gpus, d.UUID)
	}
	for _, l := range s.Links {
		n := gpu.Link{NVLinks: l.NVLinks, Path: l.Path}.Score()
		scores[[2]string{gpus[l.A], gpus[l.B]}], scores[[2]string{gpus[l.B], gpus[l.A]}] = n, n
	}
	return gpus, func(a, b string) int { return scores[[2]string{a, b}] }
}

func TestBestConnectedGPUsAreChosen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		machine   nvmltest.State
		available []int
		must      []int
		size      int
		want      []int
	}{
		"two with two NVLinks":                                  {nvmltest.V100(8), []int{0, 1, 2, 3, 4, 5, 6, 7}, nil, 2, []int{0, 3}},
		"four that are all connected":                           {nvmltest.V100(8), []int{0, 1, 2, 3, 4, 5, 6, 7}, nil, 4, []int{0, 1, 2, 3}},
		"four after some are taken":                             {nvmltest.V100(8), []int{0, 1, 4, 5, 6, 7}, nil, 4, []int{4, 5, 6, 7}},
		"two that leave two with NVLinks":                       {nvmltest.V100(8), []int{0, 3, 4, 7}, nil, 2, []int{0, 3}},
		"the partner of one that must be included":              {nvmltest.V100(8), []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{6}, 2, []int{5, 6}},
		"one that belongs to no other":                          {nvmltest.V100(8), []int{0, 3, 6}, nil, 1, []int{6}},
		"all of them":                                           {nvmltest.V100(8), []int{0, 3, 6}, nil, 3, []int{0, 3, 6}},
		"two behind a PCIe switch, where NVSwitch connects all": {nvmltest.A100(8), []int{1, 2, 3, 5}, nil, 2, []int{2, 3}},
		"one whose neighbor is taken":                           {nvmltest.A100(8), []int{2, 3, 4, 5, 7}, nil, 1, []int{7}},
		"four of one CPU":                                       {nvmltest.H100(8), []int{0, 2, 3, 4, 5, 6, 7}, nil, 4, []int{4, 5, 6, 7}},
		"two of one CPU":                                        {nvmltest.T4(4), []int{1, 2, 3}, nil, 2, []int{2, 3}},
		"two of which nothing is known":                         {nvmltest.State{Devices: nvmltest.T4(4).Devices}, []int{1, 2, 3}, nil, 2, []int{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gpus, score := board(c.machine)
			named := func(indices []int) []string {
				var all []string
				for _, i := range indices {
					all = append(all, gpus[i])
				}
				return all
			}
			r := alloc.Request{Available: named(c.available), MustInclude: named(c.must), Size: c.size, Score: score}
			got, want := alloc.Preferred(r), named(c.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			holds(t, r)
		})
	}
}

func TestMemoryDecidesBetweenEquallyConnectedGPUs(t *testing.T) {
	t.Parallel()
	gpus, score := board(nvmltest.A100(8))
	loads := map[string]alloc.Load{gpus[4]: {FreeMemoryMiB: 10}, gpus[5]: {FreeMemoryMiB: 10}}
	got := alloc.Preferred(alloc.Request{Available: gpus, Size: 2, Score: score, Loads: loads})
	if !slices.Equal(got, []string{gpus[4], gpus[5]}) {
		t.Errorf("got %q", got)
	}
}

func TestConnectionsDoNotMatterToReplicas(t *testing.T) {
	t.Parallel()
	gpus, score := board(nvmltest.V100(8))
	var available []string
	for _, uuid := range gpus {
		available = append(available, ids(uuid, 0, 1)...)
	}
	with, without := alloc.Request{Available: available, Size: 2, Score: score}, alloc.Request{Available: available, Size: 2}
	if a, b := alloc.Preferred(with), alloc.Preferred(without); !slices.Equal(a, b) {
		t.Errorf("with connections %q, without %q", a, b)
	}
}

// divisions calls f with each way to divide GPUs into sets of a size, of which one is smaller if their number is no multiple of the size. It is a plain
// enumeration, as in NVIDIA's go-gpuallocator.
func divisions(gpus []string, size int, f func([][]string)) {
	if len(gpus) == 0 {
		f(nil)
		return
	}
	sizes := []int{size}
	if rest := len(gpus) % size; rest > 0 {
		sizes = append(sizes, rest)
	}
	for _, n := range sizes {
		if n > len(gpus) {
			continue
		}
		subsets(gpus[1:], n-1, func(with, without []string) {
			set := append([]string{gpus[0]}, with...)
			divisions(without, size, func(others [][]string) { f(append([][]string{set}, others...)) })
		})
	}
}

func subsets(all []string, size int, f func(with, without []string)) {
	if size == 0 {
		f(nil, all)
		return
	}
	for i := range all {
		if len(all)-i < size {
			return
		}
		subsets(all[i+1:], size-1, func(with, without []string) {
			f(append([]string{all[i]}, with...), slices.Concat(all[:i], without))
		})
	}
}

func scoreOf(set []string, score func(a, b string) int) int {
	sum := 0
	for i, a := range set {
		for _, b := range set[i+1:] {
			sum += score(a, b)
		}
	}
	return sum
}

// TestChoiceHasBestScores compares with all ways to divide the GPUs: the choice is a set of one with the best sum of scores, and no set of such a one is better
// connected.
func TestChoiceHasBestScores(t *testing.T) {
	t.Parallel()
	machines := []nvmltest.State{nvmltest.V100(8), nvmltest.A100(8), nvmltest.T4(8)}
	rapid.Check(t, func(t *rapid.T) {
		gpus, score := board(rapid.SampledFrom(machines).Draw(t, "machine"))
		if rapid.Bool().Draw(t, "anyhow") {
			seed := rapid.Uint64().Draw(t, "seed")
			score = func(a, b string) int {
				if a > b {
					a, b = b, a
				}
				return rand.New(rand.NewPCG(seed, uint64(slices.Index(gpus, a)*8+slices.Index(gpus, b)))).IntN(4) * 100
			}
		}
		n := rapid.IntRange(3, 8).Draw(t, "available")
		available := rapid.Permutation(gpus).Draw(t, "order")[:n]
		size := rapid.IntRange(2, n-1).Draw(t, "size")
		must := available[:rapid.IntRange(0, size-1).Draw(t, "must")]

		got := alloc.Preferred(alloc.Request{Available: available, MustInclude: must, Size: size, Score: score})
		sorted := slices.Sorted(slices.Values(got))
		bestTotal, bestOwn, found := -1, -1, false
		divisions(available, size, func(sets [][]string) {
			total := 0
			for _, set := range sets {
				total += scoreOf(set, score)
			}
			for _, set := range sets {
				if len(set) != size || slices.ContainsFunc(must, func(m string) bool { return !slices.Contains(set, m) }) {
					continue
				}
				own := scoreOf(set, score)
				same := slices.Equal(slices.Sorted(slices.Values(set)), sorted)
				switch {
				case total > bestTotal || total == bestTotal && own > bestOwn:
					bestTotal, bestOwn, found = total, own, same
				case total == bestTotal && own == bestOwn:
					found = found || same
				}
			}
		})
		if !found || scoreOf(got, score) != bestOwn {
			t.Fatalf("of %q with %q, %d: chose %q with a score of %d, and the best division has %d and a set with %d", available, must, size, got, scoreOf(got, score), bestTotal, bestOwn)
		}
	})
}

func BenchmarkPreferredOf16GPUs(b *testing.B) {
	var gpus []string
	for i := range 16 {
		gpus = append(gpus, fmt.Sprintf("GPU-%02d", i))
	}
	for _, size := range []int{2, 4, 5, 8} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				alloc.Preferred(alloc.Request{Available: gpus, Size: size, Score: func(a, b string) int { return int(a[5]^b[5]) % 5 * 100 }})
			}
		})
	}
}
