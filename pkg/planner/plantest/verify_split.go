package plantest

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
)

// number bounds the number of launched machines of some offerings, least and most inclusive.
type number struct {
	offerings   []int
	least, most int64
}

// and returns the conjunction of bounds on numbers.
func and(counts []number, c number) []number {
	out := slices.Clone(counts)
	for i, o := range out {
		if slices.Equal(o.offerings, c.offerings) {
			out[i].least, out[i].most = max(o.least, c.least), min(o.most, c.most)
			return out
		}
	}
	return append(out, c)
}

// kind is a group of machines that are counted together, with the greatest worth and the lowest price of any of them.
type kind struct {
	price, most *big.Rat
	least       int64
	more        int64 // the maximum number of machines beyond the least
}

// counted checks that machines in the given numbers, with fractions beyond the least number, do not satisfy some cover at a price below the bound.
func (b *buying) counted(counts []number) error {
	seen := map[int]bool{}
	for _, c := range counts {
		for _, o := range c.offerings {
			if seen[o] {
				return fmt.Errorf("offering %d is counted together with different others", o)
			}
			seen[o] = true
		}
		if c.least > c.most {
			return nil
		}
	}
	for o := range b.prices {
		if !seen[o] {
			counts = append(slices.Clip(counts), number{[]int{o}, 0, math.MaxInt64})
		}
	}
	for r := range b.covers {
		if b.least(r, counts).Cmp(new(big.Rat).SetInt64(b.bound-1)) > 0 {
			return nil
		}
	}
	return errors.New("machines in such numbers keep each cover below the bound")
}

// least returns the price of the cheapest machines in the given numbers that satisfy a cover. The price is above the bound if there are none.
func (b *buying) least(r int, counts []number) *big.Rat {
	var kinds []kind
	price, need := new(big.Rat), new(big.Rat).SetInt(b.needs[r])
	for _, c := range counts {
		k := kind{least: c.least, more: c.most - c.least}
		for _, o := range c.offerings {
			if p := new(big.Rat).SetInt64(b.prices[o]); k.price == nil || p.Cmp(k.price) < 0 {
				k.price = p
			}
			if m := new(big.Rat).SetInt64(b.covers[r].Most[o]); k.most == nil || m.Cmp(k.most) > 0 {
				k.most = m
			}
		}
		least := new(big.Rat).SetInt64(k.least)
		price.Add(price, new(big.Rat).Mul(k.price, least))
		need.Sub(need, least.Mul(k.most, least))
		if k.most.Sign() > 0 {
			kinds = append(kinds, k)
		}
	}
	slices.SortStableFunc(kinds, func(x, y kind) int {
		return new(big.Rat).Mul(x.price, y.most).Cmp(new(big.Rat).Mul(y.price, x.most))
	})
	for _, k := range kinds {
		if need.Sign() <= 0 {
			return price
		}
		n := new(big.Rat).Quo(need, k.most)
		if more := new(big.Rat).SetInt64(k.more); n.Cmp(more) > 0 {
			n = more
		}
		price.Add(price, new(big.Rat).Mul(n, k.price))
		need.Sub(need, n.Mul(n, k.most))
	}
	if need.Sign() > 0 {
		return new(big.Rat).SetInt64(b.bound)
	}
	return price
}
