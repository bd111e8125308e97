package cost

import (
	"cmp"
	"math/bits"
	"slices"
)

// Apportion divides an amount by weights, and returns parts that add up to it. It rounds by largest remainders (Hamilton's method): each part is its exact share,
// rounded down or up. Equal remainders are rounded up in the order of the weights. If all weights are 0, the first gets everything. Negative numbers count as 0.
func Apportion(amount int64, weights []int64) []int64 {
	parts := make([]int64, len(weights))
	if len(weights) == 0 {
		return parts
	}
	amount = max(0, amount)
	var sum uint64
	for _, w := range weights {
		sum = plus(sum, w)
	}
	if sum == 0 {
		parts[0] = amount
		return parts
	}
	rest, remainders := amount, make([]uint64, len(weights))
	for i, w := range weights {
		high, low := bits.Mul64(uint64(amount), uint64(max(0, w)))
		quotient, remainder := bits.Div64(high, low, sum) // high < sum, because the amount is less than 2^64 and w at most sum.
		parts[i], remainders[i] = int64(quotient), remainder
		rest -= parts[i]
	}
	order := make([]int, len(weights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainders[b], remainders[a]) })
	for i := 0; rest > 0 && i < len(order); i++ {
		parts[order[i]]++
		rest--
	}
	parts[order[0]] += rest
	return parts
}

// plus adds a number that is not negative, without overflow. Weights whose sum is larger than any number have smaller parts, and the first ones get what is left.
func plus(sum uint64, n int64) uint64 {
	added, carry := bits.Add64(sum, uint64(max(0, n)), 0)
	if carry != 0 {
		return 1<<64 - 1
	}
	return added
}
