// Package amount converts and adds amounts of resources without overflow and in bounded time. Tenants write quantities, and the API server accepts any: a
// sum or a product that wraps around would turn a pod that requests too much into one that requests less than nothing, and arithmetic on a quantity such
// as 1e2000000000 takes hours. No other package does arithmetic on quantities.
package amount

import (
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Max is larger than any amount of any machine: 8 PiB in bytes, nine thousand million CPUs in thousandths. Planning uses amounts up to Max; see
// planner.MaxAmount.
const Max int64 = 1 << 53

// Value returns a quantity in its unit, rounded up. A quantity that does not fit into an int64 becomes the largest or the smallest int64.
func Value(q resource.Quantity) int64 { return scaled(q, 0) }

// Milli returns a quantity in thousandths of its unit, rounded up and saturating like [Value].
func Milli(q resource.Quantity) int64 { return scaled(q, resource.Milli) }

func scaled(q resource.Quantity, scale resource.Scale) int64 {
	switch q.Sign() {
	case 0:
		return 0
	case 1:
		return magnitude(Clamp(q), scale)
	}
	positive := Clamp(q).DeepCopy()
	positive.ToDec().Neg() // The smallest int64 has no opposite.
	if m := magnitude(positive, scale); m < math.MaxInt64 {
		return -m
	}
	return math.MinInt64
}

// maxExact bounds the values that need no comparison with the largest int64. It leaves room for the error of a float.
const maxExact = 1 << 62

// magnitude converts a positive, bounded quantity.
func magnitude(q resource.Quantity, scale resource.Scale) int64 {
	// Sums of quantities can be larger than an int64 even at scale 0.
	if q.AsApproximateFloat64()*math.Pow10(-int(scale)) >= maxExact && q.Cmp(*resource.NewScaledQuantity(math.MaxInt64, scale)) >= 0 {
		return math.MaxInt64
	}
	return q.ScaledValue(scale)
}

// Add returns a + b, saturating.
func Add(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}

// Sub returns a - b, saturating.
func Sub(a, b int64) int64 {
	diff := a - b
	switch {
	case a >= 0 && b < 0 && diff < 0:
		return math.MaxInt64
	case a < 0 && b > 0 && diff >= 0:
		return math.MinInt64
	}
	return diff
}

// Times returns the product of two nonnegative amounts, but at most [Max].
func Times(n, each int64) int64 {
	if each > 0 && n > Max/each {
		return Max
	}
	return n * each
}
