package search

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// base returns a plan that launches nothing, in which the nodes that no relaxation decides about are filled.
func (m *Context) base() *Solution {
	s := newSolution(m.Problem)
	m.fillIf(s, m.alone, func(h *nodeGroup) bool { return !h.relaxed })
	return s
}

// free returns, by node group, how many of its nodes a relaxation decides about: those that have no pods yet in a plan.
func (m *Context) free(s *Solution) []int64 {
	out := make([]int64, len(m.nodeGroups))
	for h := range m.nodeGroups {
		for _, i := range m.nodeGroups[h].nodes {
			if m.nodeGroups[h].relaxed && s.onNodes[i].Empty() {
				out[h]++
			}
		}
	}
	return out
}

// begin starts a relaxation for a demand, and for the nodes that have no pods yet in a plan and what it leaves of the stocks.
func (m *Context) begin(g *Master, demand pack.Load, s *Solution) {
	left := m.Problem.Limits
	if m.Problem.Stocked {
		left = s.limits(m.Problem)
	}
	g.begin(m.Problem, demand, left)
	if len(m.nodeGroups) == 0 {
		return
	}
	free := m.free(s)
	g.addNodeGroups(demand, free, func(k int) bool {
		for h, n := range free {
			if n > 0 && m.Problem.Nodes[m.nodeGroups[h].nodes[0]].Fits[k] > 0 {
				return true
			}
		}
		return false
	})
}

// priceNodeGroups prices the node groups. Loads are of interest if their worth exceeds that of the best one in the relaxation by 1/part. The relaxation may be
// nil.
func (m *Context) priceNodeGroups(g *Master, values []int64, demand pack.Load, limit pricing.Effort, part int64) []pricing.Priced {
	if len(m.nodeGroups) == 0 {
		return nil
	}
	known := make([]int64, len(m.nodeGroups))
	if g != nil {
		for _, c := range g.columns {
			if h, ok := c.nodeGroup(); ok {
				known[h] = max(known[h], pack.Worth(values, c.Load))
			}
		}
	}
	for h := range known {
		if part > 0 {
			known[h] += known[h] / part
		}
	}
	return m.nodeGroupOracle.Price(m.Effort, values, demand, limit, func(h int) int64 { return known[h] })
}

// occupy puts pods on nodes of a node group that have none yet, as in a column, as far as there are unplaced pods. It reports whether it did.
func (m *Context) occupy(s *Solution, h int, load pack.Load, times int32) bool {
	used, l := false, load
	for _, i := range m.nodeGroups[h].nodes {
		if times == 0 {
			break
		}
		if !s.onNodes[i].Empty() {
			continue
		}
		whole := load.Under(s.Left)
		if !whole {
			l = load.Within(s.Left)
		}
		if l.Empty() || (!used || !whole) && !m.room.Fill(m.Problem, &m.Problem.Nodes[i].Capacity, l) {
			break
		}
		s.onNodes[i] = l
		s.Left.Add(l, -1)
		used = true
		times--
	}
	return used
}

// settle puts unplaced pods on nodes: the most valuable load on nodes without pods, and whatever fits on the others.
func (m *Context) settle(s *Solution, values []int64) {
	for i := range m.Problem.Nodes {
		if s.Left.Empty() {
			return
		}
		if s.onNodes[i].Empty() {
			if l := m.FillNode(i, values, s.Left); !l.Empty() {
				s.onNodes[i] = l
			}
			m.Effort.Spend(pricing.PriceCost)
		} else if l := m.TopUp(&m.Problem.Nodes[i].Capacity, s.onNodes[i], s.Left); l != nil {
			s.onNodes[i] = l
		}
	}
}

// FillNode returns the most valuable waiting pods that an emptied node holds, and removes them from those that wait.
func (m *Context) FillNode(i int, values []int64, waiting pack.Load) pack.Load {
	k := m.NodeKnapsacks[i]
	k.Price(values, waiting)
	k.Search(waiting, fillSteps, 0)
	l := slices.Clone(k.Best)
	waiting.Add(l, -1)
	return l
}

// TopUp adds waiting pods to a load. It returns the new load, or nil if nothing fits.
func (m *Context) TopUp(c *pack.Capacity, l, waiting pack.Load) pack.Load {
	var out pack.Load
	if !m.room.Fill(m.Problem, c, l) {
		return nil
	}
	for k, n := range waiting {
		if n == 0 || c.Fits[k] == 0 {
			continue
		}
		if more := m.room.Add(m.Problem, c, k, n); more > 0 {
			if out == nil {
				out = slices.Clone(l)
			}
			out[k] += more
			waiting[k] -= more
		}
	}
	// Pods that were added one by one have GPUs, but a plan assigns them again and has to succeed.
	if out != nil && c.Binned && !m.room.Fill(m.Problem, c, out) {
		waiting.Add(out, 1)
		waiting.Add(l, -1)
		return nil
	}
	return out
}
