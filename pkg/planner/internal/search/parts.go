package search

import (
	"slices"
	"sync"
	"sync/atomic"

	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// Limits on parts: the numbers of shapes and of machines at which a part is complete, and the steps that a sweep spends on each.
const (
	partShapes   = 150
	partMachines = 500
	partSteps    = 60_000
)

// part is some machines and nodes of a plan with their pods, as a problem of its own.
type part struct {
	machines, nodes []int // indices into the plan
	shapes          []int // the shapes of their pods
	problem         *pack.Problem
	values, linear  []int64
	solution        *Solution
}

// improveParts improves the best plan, which places all pods, part by part in at most the given number of sweeps. An attempt of ruin and recreate concerns few
// machines, but its time grows with the number of shapes. A problem with only the pods of some machines has few shapes, and two parts are solved in parallel.
// Every sweep divides the plan in another way.
func (h *state) improveParts(values []int64, sweeps int) {
	h.ctx.AimAll(values)
	var choice Sequence
	for idle := 0; sweeps > 0 && idle < maxIdleSweeps && !h.ctx.Effort.Done() && !h.closed(); sweeps-- {
		before := h.best.cost(h.ctx.Problem)
		parts := h.divide(&choice)
		spare := h.best.limits(h.ctx.Problem)
		for i, x := range parts {
			if i > 0 {
				spare = h.ctx.Problem.Limits.Nothing()
			}
			h.separate(x, values, spare)
		}
		h.solveParts(parts)
		h.best = h.merged(parts)
		if idle++; h.best.cost(h.ctx.Problem).Less(before) {
			idle = 0
		}
	}
}

// maxIdleSweeps is the number of sweeps without improvement after which the parts are given up.
const maxIdleSweeps = 20

// divide divides the machines and nodes of the best plan at random.
func (h *state) divide(choice *Sequence) []*part {
	machines := len(h.best.Machines)
	order := make([]int, machines+len(h.ctx.Problem.Nodes))
	for i := range order {
		j := choice.Below(i + 1)
		order[i], order[j] = order[j], i
	}
	var parts []*part
	last := make([]int, len(h.ctx.Problem.Shapes)) // the last part that has the shape, counted from 1
	for _, i := range order {
		if n := len(parts); n == 0 || len(parts[n-1].shapes) >= partShapes || len(parts[n-1].machines)+len(parts[n-1].nodes) >= partMachines {
			parts = append(parts, &part{})
		}
		x := parts[len(parts)-1]
		var load pack.Load
		if i < machines {
			x.machines, load = append(x.machines, i), h.best.Machines[i].Load
		} else {
			x.nodes, load = append(x.nodes, i-machines), h.best.onNodes[i-machines]
		}
		for k, n := range load {
			if n > 0 && last[k] < len(parts) {
				last[k] = len(parts)
				x.shapes = append(x.shapes, k)
			}
		}
	}
	for _, x := range parts {
		slices.Sort(x.shapes)
		slices.Sort(x.nodes)
	}
	return parts
}

// separate makes the problem of a part, and its solution in the plan. The part may use of limits and stocks what its machines use, and what is spare.
func (h *state) separate(x *part, values []int64, spare pack.Limits) {
	p, limits := h.ctx.Problem, spare
	demand := make(pack.Load, len(p.Shapes))
	narrow := func(l pack.Load) pack.Load {
		demand.Add(l, 1)
		return pick(l, x.shapes)
	}
	x.solution = &Solution{Left: make(pack.Load, len(x.shapes))}
	for _, i := range x.machines {
		m := &h.best.Machines[i]
		o := &p.Offers[m.Offer]
		limits.GiveBack(&o.Charge)
		x.solution.Machines = append(x.solution.Machines, Machine{m.Offer, narrow(m.Load)})
	}
	for _, i := range x.nodes {
		x.solution.onNodes = append(x.solution.onNodes, narrow(h.best.onNodes[i]))
	}
	x.problem = p.Part(x.shapes, demand, x.nodes, limits)
	x.values, x.linear = pick(values, x.shapes), pick(h.ctx.linear, x.shapes)
}

// pick returns the elements of a list at some indices.
func pick[S ~[]E, E any](of S, at []int) S {
	out := make(S, len(at))
	for i, k := range at {
		out[i] = of[k]
	}
	return out
}

// solveParts improves the solutions of parts on two cores. Each part has its own effort, so the results do not depend on which core is faster. Half of their steps
// count, because the parts run in parallel.
func (h *state) solveParts(parts []*part) {
	steps := min(partSteps, max(1, h.ctx.Effort.Left/int64((len(parts)+1)/2)))
	var next, spent atomic.Int64
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(parts) && !h.ctx.Effort.Stopped(); i = int(next.Add(1)) - 1 {
				e := h.ctx.Effort.Of(steps)
				r := &neighborhood{ctx: h.ctx.part(parts[i], e)}
				r.improve(parts[i].solution, parts[i].values, func() bool { return false })
				spent.Add(steps - e.Left)
			}
		})
	}
	both.Wait()
	h.ctx.Effort.Spend(spent.Load()/2 + 1)
}

// part returns the context of a part. Its knapsacks have the weights of those of the whole problem.
func (m *Context) part(x *part, e *effort.Budget) *Context {
	c := &Context{
		Problem: x.problem, Effort: e, alone: x.values, linear: x.linear, linearStocks: m.linearStocks, duals: m.linearStocks, byPrice: m.byPrice,
		room: pack.Room{Ledger: pack.NewLedger(x.problem)}, oracle: &pricing.Oracle{Machines: make([]pricing.Machine, len(m.oracle.Machines))},
	}
	at := slices.Repeat([]int{-1}, len(m.Problem.Shapes))
	for k, of := range x.shapes {
		at[of] = k
	}
	for t := range m.oracle.Machines {
		c.oracle.Machines[t].Knapsack = m.oracle.Machines[t].Knapsack.Part(x.problem, &x.problem.Offers[t].Capacity, at)
	}
	c.addNodeGroups(x.problem)
	return c
}

// merged returns the plan that consists of the solutions of all parts.
func (h *state) merged(parts []*part) *Solution {
	whole := &Solution{Left: h.best.Left, onNodes: slices.Clone(h.best.onNodes)}
	for _, x := range parts {
		wide := func(l pack.Load) pack.Load {
			out := make(pack.Load, len(h.ctx.Problem.Shapes))
			for k, n := range l {
				out[x.shapes[k]] = n
			}
			return out
		}
		for _, m := range x.solution.Machines {
			whole.Machines = append(whole.Machines, Machine{m.Offer, wide(m.Load)})
		}
		for i, l := range x.solution.onNodes {
			whole.onNodes[x.nodes[i]] = wide(l)
		}
	}
	return whole
}
