package planner

import (
	"cmp"
	"slices"
)

// NoLimits is what a pool without limits may still launch.
var NoLimits = Physical{MilliCPU: Unlimited, MemoryBytes: Unlimited, GPUs: Unlimited, Replicas: Unlimited, Nodes: Unlimited}

// Take subtracts the usage of machines from what is left of their pool's limits. Amounts that are [Unlimited] stay unlimited.
func (left *Physical) Take(counts Physical) {
	for _, d := range []struct {
		left *int64
		uses int64
	}{
		{&left.MilliCPU, counts.MilliCPU},
		{&left.MemoryBytes, counts.MemoryBytes},
		{&left.GPUs, counts.GPUs},
		{&left.Replicas, counts.Replicas},
		{&left.Nodes, counts.Nodes},
	} {
		if *d.left != Unlimited {
			*d.left -= d.uses
		}
	}
}

// Take subtracts what a machine draws from stocks.
func Take(stocks []Stock, draws []Draw) {
	for _, d := range draws {
		stocks[d.Stock].Left -= d.Amount
	}
}

// GiveBack undoes [Take].
func GiveBack(stocks []Stock, draws []Draw) {
	for _, d := range draws {
		stocks[d.Stock].Left += d.Amount
	}
}

// Minus returns the difference of each amount.
func (left Physical) Minus(used Physical) Physical {
	return Physical{
		MilliCPU: left.MilliCPU - used.MilliCPU, MemoryBytes: left.MemoryBytes - used.MemoryBytes, GPUs: left.GPUs - used.GPUs, Replicas: left.Replicas - used.Replicas,
		Nodes: left.Nodes - used.Nodes,
	}
}

// LimitsAsStocks returns a snapshot with a further stock for each limit of a pool, from which the offerings of the pool draw what they count. The limits stay. Its plans are
// those of the snapshot. It is for a search, and not valid as Validate means it: the names of the stocks repeat.
func LimitsAsStocks(s Snapshot) Snapshot {
	pools := make([]int, len(s.Pools))
	for i := range pools {
		pools[i] = i
	}
	slices.SortStableFunc(pools, func(a, b int) int { return cmp.Compare(s.Pools[a].Name, s.Pools[b].Name) })
	s.Stocks, s.Offerings = slices.Clone(s.Stocks), slices.Clone(s.Offerings)
	for _, pool := range pools {
		for _, amount := range []func(Physical) int64{
			func(p Physical) int64 { return p.MilliCPU },
			func(p Physical) int64 { return p.MemoryBytes },
			func(p Physical) int64 { return p.GPUs },
			func(p Physical) int64 { return p.Replicas },
			func(p Physical) int64 { return p.Nodes },
		} {
			left := amount(s.Pools[pool].Remaining)
			if left < 0 || left > MaxAmount {
				continue
			}
			for i := range s.Offerings {
				if o := &s.Offerings[i]; o.Pool == pool && amount(o.Physical) > 0 {
					o.Draws = append(slices.Clip(o.Draws), Draw{Stock: len(s.Stocks), Amount: amount(o.Physical)})
				}
			}
			s.Stocks = append(s.Stocks, Stock{Name: s.Pools[pool].Name, Left: left})
		}
	}
	return s
}
