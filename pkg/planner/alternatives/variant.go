package alternatives

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Variant is an offering with the alternatives that its NodeClaim names.
type Variant struct {
	Offering     int
	Alternatives []int
}

// Greatest returns what a variant counts against the limits of its pool: the maximum over its offerings, because any of them may be launched.
func Greatest(s planner.Snapshot, v Variant) planner.Physical {
	p := s.Offerings[v.Offering].Physical
	for _, i := range v.Alternatives {
		p = p.Max(s.Offerings[i].Physical)
	}
	return p
}

// Least returns, as a node, what an offering and its alternatives all have. It also reports whether they differ in a domain.
func Least(s planner.Snapshot, offering int, alternatives []int) (planner.Node, bool) {
	o := s.Offerings[offering]
	n := planner.Node{Free: o.Free, GPUs: slices.Clone(o.GPUs), Quotas: slices.Clone(o.Quotas), Domains: slices.Clone(o.Domains)}
	mixed := false
	for _, i := range alternatives {
		x := s.Offerings[i]
		n.Free = n.Free.Each(x.Free, func(a, b int64) int64 { return min(a, b) })
		n.GPUs = n.GPUs[:min(len(n.GPUs), len(x.GPUs))]
		for g := range n.GPUs {
			n.GPUs[g] = planner.GPU{Replicas: min(n.GPUs[g].Replicas, x.GPUs[g].Replicas), MemoryBytes: min(n.GPUs[g].MemoryBytes, x.GPUs[g].MemoryBytes)}
		}
		for q := range s.Quotas {
			if least := s.QuotaOf(x.Quotas, q); least < s.QuotaOf(n.Quotas, q) {
				n.Quotas = slices.DeleteFunc(n.Quotas, func(a planner.Amount) bool { return a.Quota == q })
				n.Quotas = append(n.Quotas, planner.Amount{Quota: q, Count: least})
			}
		}
		slices.SortFunc(n.Quotas, func(a, b planner.Amount) int { return cmp.Compare(a.Quota, b.Quota) })
		for t := range n.Domains {
			if t >= len(x.Domains) || x.Domains[t] != n.Domains[t] {
				n.Domains[t], mixed = -1, true
			}
		}
	}
	return n, mixed
}
