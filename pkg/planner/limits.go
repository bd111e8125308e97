package planner

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
