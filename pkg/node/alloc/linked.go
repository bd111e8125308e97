package alloc

import (
	"cmp"
	"math/bits"
	"slices"
)

// maxLinked is the largest number of GPUs among which the best connected ones are searched. NVIDIA's and EC2's machines have at most 16.
const maxLinked = 16

// bestLinked chooses whole GPUs by their connections, which score rates for each pair, like the best-effort policy of NVIDIA's go-gpuallocator. It divides
// all GPUs into sets of the requested size such that the total score within sets is highest, and takes the best set that contains all of must. So it
// does not take a set that leaves badly connected GPUs to the next pods. Among equal sets it takes the one whose GPUs come first. A single GPU is the
// one with the worst connections to the others, so that well-connected GPUs stay together.
//
// gpus are in order of preference and begin with must. There are at most maxLinked. size is at most the number of gpus, and at least that of must.
func bestLinked(gpus []string, must, size int, score func(a, b string) int) []string {
	s := newPartition(gpus, size, score)
	all := uint32(1)<<len(gpus) - 1
	required := uint32(1)<<must - 1
	best, bestTotal, bestOwn := uint32(0), -1, -1
	if size == 1 && must == 0 {
		for i := range gpus {
			others := 0
			for j := range gpus {
				others += s.pairs[i][j]
			}
			if own := -others; best == 0 || own > bestOwn {
				best, bestOwn = 1<<i, own
			}
		}
		return s.named(best)
	}
	eachSubset(all&^required, size-must, func(set uint32) {
		set |= required
		total, own := s.within[set]+s.divide(all&^set), s.within[set]
		if cmp.Or(cmp.Compare(total, bestTotal), cmp.Compare(own, bestOwn)) > 0 {
			best, bestTotal, bestOwn = set, total, own
		}
	})
	return s.named(best)
}

// partition divides GPUs, which are bits of a mask, into sets of equal size. If their number is not a multiple of it, one set is smaller.
type partition struct {
	gpus  []string
	size  int
	pairs [][]int
	// within is the sum of the scores of all pairs in a set. divided is the best sum of within over the sets of a partition, or -1 if it is not computed
	// yet.
	within, divided []int
}

func newPartition(gpus []string, size int, score func(a, b string) int) *partition {
	s := &partition{gpus: gpus, size: size, within: make([]int, 1<<len(gpus)), divided: make([]int, 1<<len(gpus))}
	for i := range gpus {
		s.pairs = append(s.pairs, make([]int, len(gpus)))
		for j := range i {
			s.pairs[i][j] = max(0, score(gpus[i], gpus[j]))
			s.pairs[j][i] = s.pairs[i][j]
		}
	}
	for set := 1; set < len(s.within); set++ {
		first := bits.TrailingZeros32(uint32(set))
		rest := set & (set - 1)
		s.within[set] = s.within[rest]
		for j := range gpus {
			if rest&(1<<j) != 0 {
				s.within[set] += s.pairs[first][j]
			}
		}
	}
	for i := range s.divided {
		s.divided[i] = -1
	}
	s.divided[0] = 0
	return s
}

// divide returns the best sum of the scores within the sets of a partition. The first GPU is in one of the sets, so trying all sets with it suffices.
func (s *partition) divide(gpus uint32) int {
	if known := s.divided[gpus]; known >= 0 {
		return known
	}
	first := gpus & -gpus
	best := 0
	with := func(size int) {
		eachSubset(gpus&^first, size-1, func(set uint32) {
			set |= first
			best = max(best, s.within[set]+s.divide(gpus&^set))
		})
	}
	count := bits.OnesCount32(gpus)
	if count >= s.size {
		with(s.size)
	}
	if rest := count % s.size; rest > 0 {
		with(rest)
	}
	s.divided[gpus] = best
	return best
}

func (s *partition) named(set uint32) []string {
	var names []string
	for i, name := range s.gpus {
		if set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// eachSubset calls f with each subset of the given size, those with the lowest bits first.
func eachSubset(of uint32, size int, f func(uint32)) {
	if size == 0 {
		f(0)
		return
	}
	for ; bits.OnesCount32(of) >= size; of &= of - 1 {
		first := of & -of
		eachSubset(of&^first, size-1, func(set uint32) { f(first | set) })
	}
}

// wholeGPUs returns the GPUs of a request in order of preference, those that must be included first. It returns false if the request is not for whole
// GPUs or for too many to search.
func (r Request) wholeGPUs() (gpus []string, must int, ok bool) {
	if r.Score == nil || r.Size < 1 {
		return nil, 0, false
	}
	seen := map[string]bool{}
	add := func(ids []string) {
		for _, id := range ids {
			if !seen[id] {
				seen[id] = true
				gpus = append(gpus, id)
			}
		}
	}
	add(r.MustInclude)
	must = len(gpus)
	rest := slices.Clone(r.Available)
	slices.SortFunc(rest, func(a, b string) int {
		return compareChoices(&choice{uuid: a, load: r.Loads[a]}, &choice{uuid: b, load: r.Loads[b]}, r.Packed)
	})
	add(rest)
	whole := !slices.ContainsFunc(gpus, func(id string) bool { _, _, replica := Parse(id); return replica })
	return gpus, must, whole && len(gpus) <= maxLinked && must < r.Size && r.Size < len(gpus)
}
