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

// QuotaOf returns what a machine with the given amounts has of a quota.
func (s Snapshot) QuotaOf(amounts []Amount, quota int) int64 {
	if i := slices.IndexFunc(amounts, func(a Amount) bool { return a.Quota == quota }); i >= 0 {
		return amounts[i].Count
	}
	return s.Quotas[quota].Each
}

// Occupy subtracts a pod of a class from what a node has left. The pod is on one of the node's GPUs, or gpu is no index of one. It changes the lists of the node.
func (s Snapshot) Occupy(n *Node, class, gpu int) {
	c := &s.Classes[class]
	n.Free = n.Free.Minus(c.Requests)
	if gpu >= 0 && gpu < len(n.GPUs) {
		n.GPUs[gpu].Replicas -= c.Requests.Replicas
		n.GPUs[gpu].MemoryBytes -= c.GPUMemoryBytes
	}
	for _, q := range c.Quotas {
		has := s.QuotaOf(n.Quotas, q.Quota)
		if q.Count == 0 || has == Unlimited {
			continue
		}
		i, found := slices.BinarySearchFunc(n.Quotas, q.Quota, func(a Amount, quota int) int { return cmp.Compare(a.Quota, quota) })
		if !found {
			n.Quotas = slices.Insert(n.Quotas, i, Amount{Quota: q.Quota})
		}
		n.Quotas[i].Count = has - q.Count
	}
}
