package amount

import (
	"math"
	"math/bits"

	"karve.sh/karve/pkg/planner"
)

// Dims is the number of dimensions in which a machine can be full.
const Dims = 6

// The dimensions of a Vector, in the order in which a refusal mentions them.
const (
	Replicas = iota
	CPU
	Memory
	Ephemeral
	Pods
	// GPUMemory is the device memory of all GPUs together. Package pack decides which GPU each pod is on.
	GPUMemory
)

// Vector is a planner.Resources with device memory, as an array. Each amount is in the unit of its field.
type Vector [Dims]int64

// VectorOf returns resources as a vector.
func VectorOf(r planner.Resources) Vector {
	return Vector{
		Replicas: r.Replicas, CPU: r.MilliCPU, Memory: r.MemoryBytes,
		Ephemeral: r.EphemeralBytes, Pods: r.Pods,
	}
}

// Negative reports whether any amount is below zero. Nothing is planned with such a vector.
func (v Vector) Negative() bool {
	for _, x := range v {
		if x < 0 {
			return true
		}
	}
	return false
}

// Fit returns how many pods of the given requests fit into v, up to most. It divides, so it cannot overflow.
func (v Vector) Fit(request Vector, most int32) int32 {
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

// Take subtracts the requests of n pods that are known to fit.
func (v *Vector) Take(request Vector, n int32) {
	for d, r := range request {
		v[d] -= r * int64(n)
	}
}

// LimitDims is the number of amounts that a pool can limit.
const LimitDims = 5

// Usage is a planner.Physical as an array. It is also used for what is left of a pool's limits.
type Usage [LimitDims]int64

// UsageOf returns what counts against limits as a vector.
func UsageOf(p planner.Physical) Usage {
	return Usage{p.GPUs, p.MilliCPU, p.MemoryBytes, p.Replicas, p.Nodes}
}

// Admits reports whether a machine with the usage u may still be launched. As in Karpenter, a machine that uses none of a resource is within a limit
// that is used up exactly, but not within a limit that is exceeded.
func (left Usage) Admits(u Usage) bool {
	for i, x := range u {
		if x > left[i] {
			return false
		}
	}
	return true
}

// Launch subtracts one machine from what is left. Unlimited amounts stay unlimited, and amounts far beyond the limit saturate.
func (left *Usage) Launch(u Usage) {
	for i, x := range u {
		switch {
		case left[i] == planner.Unlimited:
		case left[i] < math.MinInt64+x:
			left[i] = math.MinInt64
		default:
			left[i] -= x
		}
	}
}

// GiveBack undoes a launch that was within the limits.
func (left *Usage) GiveBack(u Usage) {
	for i, x := range u {
		if left[i] != planner.Unlimited {
			left[i] += x
		}
	}
}

// Unlimited reports whether there are no limits at all.
func (left Usage) Unlimited() bool {
	for _, x := range left {
		if x != planner.Unlimited {
			return false
		}
	}
	return true
}

// MulDiv returns a*b/c rounded down, for a, b ≥ 0 and c > 0. It returns MaxInt64 if the result overflows.
func MulDiv(a, b, c int64) int64 {
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

// MulDivUp is MulDiv rounded up.
func MulDivUp(a, b, c int64) int64 {
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

// CompareProducts compares a*b with c*d for amounts ≥ 0 without overflow.
func CompareProducts(a, b, c, d int64) int {
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

// Saturating returns a+b for amounts ≥ 0. It returns MaxInt64 if the result overflows.
func Saturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
