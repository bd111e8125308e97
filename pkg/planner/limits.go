package planner

// Take subtracts what machines count from what is left of their pool's limits. Amounts that are [Unlimited] stay unlimited.
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

// Minus returns the difference of each amount.
func (a Physical) Minus(b Physical) Physical {
	return Physical{
		MilliCPU: a.MilliCPU - b.MilliCPU, MemoryBytes: a.MemoryBytes - b.MemoryBytes, GPUs: a.GPUs - b.GPUs, Replicas: a.Replicas - b.Replicas,
		Nodes: a.Nodes - b.Nodes,
	}
}
