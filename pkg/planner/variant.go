package planner

import (
	"cmp"
	"slices"
)

// variant is an offering with the alternatives that its claim names, as one more offering of a widened snapshot.
type variant struct {
	offering     int
	alternatives []int
}

// greatest is what a variant counts against the limits of its pool: any of its machines may come.
func greatest(s Snapshot, v variant) Physical {
	p := s.Offerings[v.offering].Physical
	for _, i := range v.alternatives {
		x := s.Offerings[i].Physical
		p = Physical{
			MilliCPU: max(p.MilliCPU, x.MilliCPU), MemoryBytes: max(p.MemoryBytes, x.MemoryBytes), GPUs: max(p.GPUs, x.GPUs),
			Replicas: max(p.Replicas, x.Replicas), Nodes: max(p.Nodes, x.Nodes),
		}
	}
	return p
}

// least returns what an offering and its alternatives all have, as a node, and whether they differ in a domain.
func least(s Snapshot, offering int, alternatives []int) (Node, bool) {
	o := s.Offerings[offering]
	n := Node{Free: o.Free, GPUs: slices.Clone(o.GPUs), Quotas: slices.Clone(o.Quotas), Domains: slices.Clone(o.Domains)}
	mixed := false
	for _, i := range alternatives {
		x := s.Offerings[i]
		n.Free = Resources{
			MilliCPU: min(n.Free.MilliCPU, x.Free.MilliCPU), MemoryBytes: min(n.Free.MemoryBytes, x.Free.MemoryBytes),
			EphemeralBytes: min(n.Free.EphemeralBytes, x.Free.EphemeralBytes), Pods: min(n.Free.Pods, x.Free.Pods), Replicas: min(n.Free.Replicas, x.Free.Replicas),
		}
		n.GPUs = n.GPUs[:min(len(n.GPUs), len(x.GPUs))]
		for g := range n.GPUs {
			n.GPUs[g] = GPU{min(n.GPUs[g].Replicas, x.GPUs[g].Replicas), min(n.GPUs[g].MemoryBytes, x.GPUs[g].MemoryBytes)}
		}
		for q := range s.Quotas {
			if least := min(quotaOf(s, n.Quotas, q), quotaOf(s, x.Quotas, q)); least != quotaOf(s, n.Quotas, q) {
				n.Quotas = slices.DeleteFunc(n.Quotas, func(a Amount) bool { return a.Quota == q })
				n.Quotas = append(n.Quotas, Amount{q, least})
			}
		}
		slices.SortFunc(n.Quotas, func(a, b Amount) int { return cmp.Compare(a.Quota, b.Quota) })
		for t := range n.Domains {
			if t >= len(x.Domains) || x.Domains[t] != n.Domains[t] {
				n.Domains[t], mixed = -1, true
			}
		}
	}
	return n, mixed
}

// quotaOf returns what a machine with the given amounts has of a quota.
func quotaOf(s Snapshot, amounts []Amount, quota int) int64 {
	if i := slices.IndexFunc(amounts, func(a Amount) bool { return a.Quota == quota }); i >= 0 {
		return amounts[i].Count
	}
	return s.Quotas[quota].Each
}
