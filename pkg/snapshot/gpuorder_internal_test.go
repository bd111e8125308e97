package snapshot

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestEqualPodsFillSeveralGPUs(t *testing.T) {
	t.Parallel()
	kind := gpuKind{4, 10, 15000}
	for _, c := range []struct {
		pod  gpuShare
		fits int64
	}{
		{gpuShare{1, 1, 1, 0}, 40},
		{gpuShare{1, 1, 3, 0}, 12},
		{gpuShare{1, 1, 5, 0}, 8},
		{gpuShare{1, 1, 1, 6000}, 8},
		{gpuShare{1, 1, 2, 5000}, 12},
		{gpuShare{2, 1, 1, 0}, 20},
		{gpuShare{1, 4, 10, 15000}, 1},
		{gpuShare{1, 2, 10, 0}, 1}, // It has the machine for itself.
		{gpuShare{1, 2, 5, 0}, 2},
		{gpuShare{1, 4, 5, 0}, 1}, // Two would fit. The sum counts a pod with several GPUs as if it needed the last ones.
	} {
		o := newGPUOrder(kind, []gpuShare{c.pod}, []gpuShare{c.pod})
		if fits := o.has(4) / o.takes(c.pod); fits != c.fits {
			t.Errorf("%d pods %+v fit on %s, want %d", fits, c.pod, kind, c.fits)
		}
	}
}

// TestPodsWithinTheQuotaFitInAnyOrder fills the GPUs of a machine up to the quota, with random pods that each get any of the GPUs that have room.
func TestPodsWithinTheQuotaFitInAnyOrder(t *testing.T) {
	t.Parallel()
	full := 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // It is repeatable.
		kind := gpuKind{2 + r.Int64N(3), 2 + r.Int64N(9), 100}
		var shapes []gpuShare
		for range 1 + r.IntN(3) {
			if r.IntN(4) == 0 {
				shapes = append(shapes, gpuShare{1 + r.Int64N(2), 1, 1, 0})
			} else if s := (gpuShare{1, 1 + r.Int64N(2), 1 + r.Int64N(kind.replicas/2), r.Int64N(6) * (1 + r.Int64N(10))}); !kind.alone(s) {
				shapes = append(shapes, s)
			}
		}
		if len(shapes) == 0 {
			continue
		}
		o := newGPUOrder(kind, shapes, shapes)
		left := o.has(kind.count)
		gpus := slices.Repeat([]gpuShare{{replicas: kind.replicas, memoryMiB: kind.memoryMiB}}, int(kind.count))
		for {
			s := shapes[r.IntN(len(shapes))]
			if left -= o.takes(s); left < 0 {
				full++
				break
			}
			for range s.times {
				if !give(r, gpus, s) {
					t.Fatalf("seed %d: %+v finds no room on %s with %+v left, of pods %+v", seed, s, kind, gpus, shapes)
				}
			}
		}
	}
	if full < 10_000 {
		t.Errorf("only %d machines were filled", full)
	}
}

// give takes what a pod asks of as many GPUs as it asks, at random of those that have room. It reports whether there were enough.
func give(r *rand.Rand, gpus []gpuShare, s gpuShare) bool {
	given := int64(0)
	for _, i := range r.Perm(len(gpus)) {
		if g := &gpus[i]; given < s.gpus && g.replicas >= s.replicas && g.memoryMiB >= s.memoryMiB {
			g.replicas, g.memoryMiB, given = g.replicas-s.replicas, g.memoryMiB-s.memoryMiB, given+1
		}
	}
	return given == s.gpus
}
