package planner

import (
	"cmp"
	"slices"
)

// NoLimits is what a pool without limits may still launch.
var NoLimits = Physical{MilliCPU: Unlimited, MemoryBytes: Unlimited, GPUs: Unlimited, Replicas: Unlimited, Nodes: Unlimited}

// Take subtracts the usage of machines from what is left of their pool's limits. Amounts that are [Unlimited] stay unlimited.
func (left *Physical) Take(counts Physical) {
	*left = left.Each(counts, func(left, uses int64) int64 {
		if left == Unlimited {
			return left
		}
		return left - uses
	})
}

// Take subtracts what a machine draws from stocks.
func Take(stocks []Stock, draws []Draw) {
	for _, d := range draws {
		stocks[d.Stock].Left -= d.Amount
	}
}

// GiveBack undoes [Take]. It leaves at most [MaxAmount] of each stock, so that a valid snapshot stays valid.
func GiveBack(stocks []Stock, draws []Draw) {
	for _, d := range draws {
		stocks[d.Stock].Left = min(MaxAmount, stocks[d.Stock].Left+d.Amount)
	}
}

// Minus returns the difference of each amount.
func (left Physical) Minus(used Physical) Physical {
	return left.Each(used, func(left, used int64) int64 { return left - used })
}

// Max returns the greater value of each amount.
func (p Physical) Max(x Physical) Physical {
	return p.Each(x, func(a, b int64) int64 { return max(a, b) })
}

// Each returns what a function makes of the two values of each amount.
func (p Physical) Each(x Physical, of func(a, b int64) int64) Physical {
	return Physical{
		MilliCPU: of(p.MilliCPU, x.MilliCPU), MemoryBytes: of(p.MemoryBytes, x.MemoryBytes), GPUs: of(p.GPUs, x.GPUs), Replicas: of(p.Replicas, x.Replicas),
		Nodes: of(p.Nodes, x.Nodes),
	}
}

// ClassByPod returns the class of each pending pod.
func (s Snapshot) ClassByPod() map[string]int {
	classes := map[string]int{}
	for c := range s.Classes {
		for _, pod := range s.Classes[c].Pods {
			classes[pod] = c
		}
	}
	return classes
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
