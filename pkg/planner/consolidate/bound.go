package consolidate

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// bound returns a proven lower bound on the price of machines for all pods of the candidates for which other nodes have no room. Limits are ignored, because
// running machines may exceed them, but not stocks, from which they drew what they regain. The running machines are included as offerings at their own prices, because one may be cheaper than every current
// offering. Rules that running pods violate are dropped.
func (st *stepper) bound(e *effort.Budget) planner.MicroUSD {
	all := make([]int, len(st.candidates))
	for i := range all {
		all[i] = i
	}
	s := st.without(all)
	for i := range s.Pools {
		s.Pools[i].Remaining = planner.NoLimits
	}
	s.Rules = slices.DeleteFunc(slices.Clone(s.Rules), func(r planner.Rule) bool {
		return slices.ContainsFunc(st.candidates, func(m candidate) bool { return m.breaks(r) })
	})
	own := len(s.Pools)
	s.Pools = append(s.Pools, planner.Pool{Remaining: planner.NoLimits})
	s.Offerings = slices.Clip(s.Offerings)
	seen := map[string]bool{}
	for i := range st.candidates {
		m := &st.candidates[i]
		o := st.whole(m)
		o.Pool = own
		o.Draws = m.Draws
		admitted := make([]bool, len(s.Classes))
		for c := range s.Classes {
			_, admitted[c] = slices.BinarySearch(st.now.Classes[c].Nodes, m.Node)
		}
		for _, pod := range m.Pods {
			admitted[pod.Class] = true
		}
		key := fmt.Sprint(o.Price, o.Free, o.GPUs, o.Quotas, o.Draws, admitted)
		if seen[key] {
			continue
		}
		seen[key] = true
		for c := range s.Classes {
			if admitted[c] {
				s.Classes[c].Offerings = append(slices.Clip(s.Classes[c].Offerings), len(s.Offerings))
			}
		}
		s.Offerings = append(s.Offerings, o)
	}
	_, bound := search.Solve(pack.Compile(s), e, nil)
	return planner.MicroUSD(bound)
}

// whole returns an offering with at least the capacity of a candidate without its pods.
func (st *stepper) whole(m *candidate) planner.Offering {
	n := st.now.Nodes[m.Node]
	o := planner.Offering{Price: m.Price, Free: n.Free, GPUs: slices.Clone(n.GPUs), Quotas: slices.Clone(n.Quotas), Physical: planner.Physical{Nodes: 1}}
	for _, pod := range m.Pods {
		c := st.now.Classes[pod.Class]
		o.Free = o.Free.Each(c.Requests, amount.Saturating)
		if c.GPUMemoryBytes > 0 && len(o.GPUs) == 0 {
			o.GPUs = []planner.GPU{{Replicas: max(0, o.Free.Replicas-c.Requests.Replicas)}}
		}
		for g := range o.GPUs {
			// A pod whose GPU is unknown may be on any GPU.
			if c.GPUMemoryBytes > 0 && (pod.GPU == g || pod.GPU < 0 || pod.GPU >= len(o.GPUs)) {
				o.GPUs[g].Replicas = amount.Saturating(o.GPUs[g].Replicas, c.Requests.Replicas)
				o.GPUs[g].MemoryBytes = amount.Saturating(o.GPUs[g].MemoryBytes, c.GPUMemoryBytes)
			}
		}
		for _, q := range c.Quotas {
			has := st.now.QuotaOf(o.Quotas, q.Quota)
			o.Quotas = slices.DeleteFunc(o.Quotas, func(a planner.Amount) bool { return a.Quota == q.Quota })
			o.Quotas = append(o.Quotas, planner.Amount{Quota: q.Quota, Count: amount.Saturating(has, q.Count)})
		}
	}
	// The replicas of pods that request no device memory may be on any GPUs.
	missing := o.Free.Replicas
	for _, g := range o.GPUs {
		missing = max(0, missing-g.Replicas)
	}
	for g := range o.GPUs {
		o.GPUs[g].Replicas = amount.Saturating(o.GPUs[g].Replicas, missing)
	}
	return o
}

// breaks reports whether the pods of a candidate violate a rule that keeps pods apart.
func (m *candidate) breaks(r planner.Rule) bool {
	for i, a := range m.Pods {
		for j, b := range m.Pods {
			if i != j && slices.Contains(r.Classes, a.Class) && slices.Contains(r.Counted, b.Class) {
				return true
			}
		}
	}
	return false
}
