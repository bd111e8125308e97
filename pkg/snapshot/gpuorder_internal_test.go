package snapshot

import (
	"math/rand/v2"
	"slices"
	"testing"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/snapshot/facts"
)

// mib returns what is asked of each of a number of GPUs.
func mib(gpus, replicas, memoryMiB int64) claims.Share {
	return claims.Share{GPUs: gpus, Replicas: replicas, MemoryBytes: memoryMiB * facts.BytesPerMiB}
}

// asking returns what a pod takes whose claims ask for sets of GPUs.
func asking(sets ...claims.Set) gpuShare { return gpuShare{1, &claims.Ask{Sets: sets}} }

func TestEqualPodsFillSeveralGPUs(t *testing.T) {
	t.Parallel()
	kind := gpuKind{4, 10, 15000}
	for _, c := range []struct {
		pod  gpuShare
		fits int64
	}{
		{asking(claims.Set{mib(1, 1, 0)}), 40},
		{asking(claims.Set{mib(1, 3, 0)}), 12},
		{asking(claims.Set{mib(1, 5, 0)}), 8},
		{asking(claims.Set{mib(1, 1, 6000)}), 8},
		{asking(claims.Set{mib(1, 2, 5000)}), 12},
		{shareOf(nil, 2), 20},
		{asking(claims.Set{mib(4, 10, 15000)}), 1},
		{asking(claims.Set{mib(2, 10, 0)}), 1}, // It has the machine for itself.
		{asking(claims.Set{mib(2, 5, 0)}), 2},
		{asking(claims.Set{mib(4, 5, 0)}), 1},                           // Two would fit. The sum counts a pod with several GPUs as if it needed the last ones.
		{asking(claims.Set{mib(1, 2, 0)}, claims.Set{mib(1, 3, 0)}), 6}, // Eight would fit. With steps of 1, a GPU may refuse 3 when it has 2 left.
		{asking(claims.Set{mib(1, 5, 0)}, claims.Set{mib(1, 5, 0)}), 4},
		{asking(claims.Set{mib(1, 5, 0), mib(1, 5, 0)}), 2},
		{asking(claims.Set{mib(1, 10, 0)}, claims.Set{mib(1, 10, 0)}), 1}, // It has the machine for itself.
	} {
		o := newGPUOrder(kind, []gpuShare{c.pod}, []gpuShare{c.pod})
		if fits := o.quotaOf(4) / o.weightOf(c.pod); fits != c.fits {
			t.Errorf("%d pods %+v fit on %s, want %d", fits, c.pod.ask, kind, c.fits)
		}
	}
}

// TestPodsWithinTheQuotaFitInAnyOrder fills the GPUs of a machine up to the quota, with random pods that each get any of the GPUs that have room.
func TestPodsWithinTheQuotaFitInAnyOrder(t *testing.T) {
	t.Parallel()
	full := 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 0))
		kind := gpuKind{2 + r.Int64N(3), 2 + r.Int64N(9), 100}
		var shapes []gpuShare
		for range 1 + r.IntN(3) {
			if r.IntN(4) == 0 {
				shapes = append(shapes, shareOf(nil, 1+r.Int64N(2)))
			} else if s := randomShare(r, kind); !kind.takesMachine(s) {
				shapes = append(shapes, s)
			}
		}
		if len(shapes) == 0 {
			continue
		}
		o := newGPUOrder(kind, shapes, shapes)
		left := o.quotaOf(kind.count)
		gpus := slices.Repeat(claims.Set{mib(1, kind.replicas, kind.memoryMiB)}, int(kind.count))
		for {
			s := shapes[r.IntN(len(shapes))]
			if left -= o.weightOf(s); left < 0 {
				full++
				break
			}
			for range s.times {
				for _, set := range s.ask.Sets {
					if !give(r, gpus, set) {
						t.Fatalf("seed %d: %+v finds no room on %s with %+v left", seed, s.ask, kind, gpus)
					}
				}
			}
		}
	}
	if full < 10_000 {
		t.Errorf("only %d machines were filled", full)
	}
}

// randomShare returns what a random pod takes that asks for at most half of each GPU.
func randomShare(r *rand.Rand, kind gpuKind) gpuShare {
	var sets []claims.Set
	for range 1 + r.IntN(2) {
		set := claims.Set{}
		for range 1 + r.IntN(2) {
			set = append(set, mib(1+r.Int64N(2), 1+r.Int64N(kind.replicas/2), r.Int64N(6)*(1+r.Int64N(10))))
		}
		sets = append(sets, set)
	}
	return asking(sets...)
}

// give takes what a set asks of different GPUs, at random of those that have room. It reports whether there were enough.
func give(r *rand.Rand, gpus, set claims.Set) bool {
	taken := map[int]bool{}
	for _, s := range set {
		given := int64(0)
		for _, i := range r.Perm(len(gpus)) {
			if g := &gpus[i]; given < s.GPUs && !taken[i] && g.Replicas >= s.Replicas && g.MemoryBytes >= s.MemoryBytes {
				g.Replicas, g.MemoryBytes, taken[i] = g.Replicas-s.Replicas, g.MemoryBytes-s.MemoryBytes, true
				given++
			}
		}
		if given < s.GPUs {
			return false
		}
	}
	return true
}
