package cost

import (
	"math"
	"slices"
)

func (m *Measured) discounted() bool {
	return slices.ContainsFunc(m.Machines, func(b Machines) bool { return b.Discount != 0 }) ||
		slices.ContainsFunc(m.Uses, func(u Use) bool { return u.Discount != 0 }) ||
		slices.ContainsFunc(m.Pods, func(p PodUse) bool { return p.Discount != 0 })
}

// listed returns what the same machines cost in the cloud's list.
func (m *Measured) listed() Measured {
	at := *m
	at.Machines = listed(m.Machines, func(b *Machines) (*float64, *float64) { return &b.USD, &b.Discount })
	at.Uses = listed(m.Uses, func(u *Use) (*float64, *float64) { return &u.USD, &u.Discount })
	at.Pods = listed(m.Pods, func(p *PodUse) (*float64, *float64) { return &p.Amount, &p.Discount })
	return at
}

// listed adds up the prices and discounts of entries about the same. It adds integers, so that the order does not matter.
func listed[E comparable](all []E, amounts func(*E) (usd, discount *float64)) []E {
	at, sums := map[E]int{}, []int64{}
	var entries []E
	for _, e := range all {
		usd, less := amounts(&e)
		nano := weight(*usd) + weight(*less) - weight(-*less)
		*usd, *less = 0, 0
		i, ok := at[e]
		if !ok {
			i, at[e] = len(entries), len(entries)
			entries, sums = append(entries, e), append(sums, 0)
		}
		sums[i] = min(math.MaxInt64/2, sums[i]+nano)
	}
	for i := range entries {
		usd, _ := amounts(&entries[i])
		*usd = float64(sums[i]) / nanoPerUSD
	}
	return entries
}
