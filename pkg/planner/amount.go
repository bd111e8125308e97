package planner

import (
	"math"
	"math/bits"
)

// dims is the number of dimensions in which a machine can be full.
const dims = 6

// The dimensions of a vec, in the order in which a refusal mentions them.
const (
	dimReplicas = iota
	dimCPU
	dimMemory
	dimEphemeral
	dimPods
	// dimGPUMemory is the device memory of all GPUs together; which GPU it is on is another matter, see packs.
	dimGPUMemory
)

// vec is a Resources, with device memory, that loops can walk: one amount a dimension, each in the unit of its field.
type vec [dims]int64

func vecOf(r Resources) vec {
	return vec{
		dimReplicas: r.Replicas, dimCPU: r.MilliCPU, dimMemory: r.MemoryBytes,
		dimEphemeral: r.EphemeralBytes, dimPods: r.Pods,
	}
}

// negative reports whether any amount is below zero; such a vec is never planned with.
func (v vec) negative() bool {
	for _, x := range v {
		if x < 0 {
			return true
		}
	}
	return false
}

// fit returns how many pods of the given requests fit into v, at most most. It divides, so that nothing can overflow.
func (v vec) fit(request vec, most int32) int32 {
	n := int64(most)
	for d, r := range request {
		if v[d] < 0 {
			return 0
		}
		if r > 0 && v[d]/r < n {
			n = v[d] / r
		}
	}
	return int32(n)
}

// take removes n pods that are known to fit.
func (v *vec) take(request vec, n int32) {
	for d, r := range request {
		v[d] -= r * int64(n)
	}
}

// limitDims is the number of things that a pool can limit.
const limitDims = 5

// usage is a Physical that loops can walk, or what is left of a pool's limits.
type usage [limitDims]int64

func usageOf(p Physical) usage {
	return usage{p.GPUs, p.MilliCPU, p.MemoryBytes, p.Replicas, p.Nodes}
}

// admits reports whether a machine that counts u may still be launched. As in Karpenter, a machine without any of a
// resource is within a limit that is exactly used up, and outside of one that is exceeded.
func (left usage) admits(u usage) bool {
	for i, x := range u {
		if x > left[i] {
			return false
		}
	}
	return true
}

// launch takes one machine from what is left; what is unlimited stays so, what is far beyond the limit saturates.
func (left *usage) launch(u usage) {
	for i, x := range u {
		switch {
		case left[i] == Unlimited:
		case left[i] < math.MinInt64+x:
			left[i] = math.MinInt64
		default:
			left[i] -= x
		}
	}
}

// giveBack undoes a launch that was within the limits.
func (left *usage) giveBack(u usage) {
	for i, x := range u {
		if left[i] != Unlimited {
			left[i] += x
		}
	}
}

// unlimited reports whether nothing is limited at all.
func (left usage) unlimited() bool {
	for _, x := range left {
		if x != Unlimited {
			return false
		}
	}
	return true
}

// mulDiv returns a*b/c rounded down, for a, b ≥ 0 and c > 0, and MaxInt64 where that does not fit.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(q)
}

// mulDivUp is mulDiv rounded up.
func mulDivUp(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if r > 0 {
		q++
	}
	if q > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(q)
}

// compareProducts compares a*b with c*d for amounts ≥ 0 without overflow.
func compareProducts(a, b, c, d int64) int {
	h1, l1 := bits.Mul64(uint64(a), uint64(b))
	h2, l2 := bits.Mul64(uint64(c), uint64(d))
	switch {
	case h1 != h2 && h1 < h2, h1 == h2 && l1 < l2:
		return -1
	case h1 == h2 && l1 == l2:
		return 0
	}
	return 1
}

// saturating returns a+b for amounts ≥ 0, and MaxInt64 where that does not fit.
func saturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
