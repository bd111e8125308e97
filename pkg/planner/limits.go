package planner

// Take takes what machines count off what is left of the limits of their pool; what is [Unlimited] stays so.
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

// Minus is the difference, amount by amount.
func (a Physical) Minus(b Physical) Physical {
	return Physical{
		MilliCPU: a.MilliCPU - b.MilliCPU, MemoryBytes: a.MemoryBytes - b.MemoryBytes, GPUs: a.GPUs - b.GPUs, Replicas: a.Replicas - b.Replicas,
		Nodes: a.Nodes - b.Nodes,
	}
}
