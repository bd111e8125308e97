package consolidate

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
	"karve.sh/karve/pkg/planner/solve"
)

// Plan searches for machines to remove, so that the machines that stay and those launched for the moved pods cost less, by more than the cost of moving
// the pods. It is deterministic for an effort. Its decisions depend on names and amounts, not on the order of the layout.
//
// Pending pods take their places on nodes first, and launches for them are not counted. Of the rules, Plan keeps only those that keep pods apart on
// machines. The caller that carries out a step plans for its pods with all rules and preferences. If [planner.Validate] refuses the snapshot of the
// layout, there are no steps.
//
// A linear relaxation decides for nearly all machines whether they leave, and a dive decides for the others. Ruin and recreate improves the result. The
// result is then divided into the smallest possible steps. If the layout limits the number of machines that a step may remove, larger parts are split
// as long as that saves money.
func Plan(solver solve.Solver, l Layout) Outlook {
	out, st, e := outlook(solver, l)
	if st == nil {
		return out
	}
	p := pack.Compile(st.allLeaving())
	m := search.NewContext(p, e)
	existing := st.existing(p)
	v := &improver{ctx: m, existing: existing}
	expensive := v.search()
	out.Steps = st.steps(newSplitter(st, v).parts())
	for _, s := range out.Steps {
		for _, i := range s.Leave {
			out.Surplus = append(out.Surplus, l.Machines[i].Node)
		}
	}
	for i, x := range existing {
		if x.candidate >= 0 && !st.candidates[x.candidate].settled && (!v.best.stays[i] || expensive[i]) {
			out.Surplus = append(out.Surplus, st.candidates[x.candidate].Node)
		}
	}
	slices.Sort(out.Surplus)
	out.Surplus = slices.Compact(out.Surplus)
	return out
}

// Bound returns the Price and the Bound of an [Outlook], without a search for steps.
func Bound(solver solve.Solver, l Layout) (price, bound planner.MicroUSD) {
	out, _, _ := outlook(solver, l)
	return out.Price, out.Bound
}

// outlook returns an Outlook without steps, the stepper, and the effort that remains for a search. The stepper is nil if the snapshot is not valid
// or no machine may leave. All snapshots that it plans for are made from this one and are valid too.
func outlook(solver solve.Solver, l Layout) (Outlook, *stepper, *effort.Budget) {
	var out Outlook
	for _, m := range l.Machines {
		out.Price += m.Price
	}
	if planner.Validate(l.Snapshot) != nil {
		return out, nil, nil
	}
	st := newStepper(solver, l)
	if len(st.candidates) == 0 {
		return out, nil, nil
	}
	e := effort.New(solver.Effort, solver.Stop)
	if e.Left < 1<<40 {
		e.Left = e.Left * int64(min(max(len(st.candidates), candidatesPerEffort), maxShares*candidatesPerEffort)) / candidatesPerEffort
		e.Most = e.Left
	}
	out.Bound = min(out.Price, st.bound(e.Part(2)))
	return out, st, e
}

const (
	// candidatesPerEffort is the number of machines that an effort is meant for. More machines get proportionally more effort, up to maxShares times as much.
	candidatesPerEffort = 100
	maxShares           = 10
	// maxRelaxed is the maximum number of column generation rounds. maxRelaxedAgain is that between two decisions of a dive.
	maxRelaxed      = 40
	maxRelaxedAgain = 2
	// maxIdle is the number of ruins without improvement after which the search ends.
	maxIdle = 4500
)

// search finds the cheapest solution. It reports, by machine, whether the machine is too expensive.
func (v *improver) search() (expensive []bool) {
	e := v.ctx.Effort
	r := newRelaxed(v.ctx, v.existing)
	r.run(maxRelaxed, e.Left/2)
	v.values = v.ctx.ChoiceValues(r.master.Values)
	expensive = r.expensive()
	v.try(r.rounded())
	r.dive(e.Left - e.Most/8)
	v.try(r.rounded())
	v.try(slices.Repeat([]bool{true}, len(v.existing)), make([]pack.Load, len(v.existing)))
	v.ruinAndRecreate(maxIdle)
	return expensive
}

// expensive reports, by machine, whether it costs more than the worth of its pods and free room, by at least half of the cost of moving its pods.
func (r *relaxed) expensive() []bool {
	out := make([]bool, len(r.existing))
	for i, row := range r.rows {
		over := r.master.LP.Duals()[row]
		out[i] = !r.existing[i].fixed && over > 1 && over >= float64(r.existing[i].moves)/2
	}
	return out
}

// steps turns the parts into steps, those with the highest saving per move first.
func (st *stepper) steps(parts []change) []Step {
	slices.SortStableFunc(parts, func(a, b change) int {
		x, _ := st.step(a.leave, a.plan)
		y, _ := st.step(b.leave, b.plan)
		return amount.CompareProducts(int64(y.Saving), int64(x.Moves+1), int64(x.Saving), int64(y.Moves+1))
	})
	var out []Step
	var large []int
	parts = slices.DeleteFunc(parts, func(c change) bool {
		over := !st.most(c.leave)
		if over {
			large = append(large, c.leave...)
		}
		return over
	})
	// A step may need capacity under a limit that another step frees.
	for again := true; again; {
		again = false
		var later []change
		for _, c := range parts {
			plan := st.relaunch(c.leave, c.plan)
			s, ok := st.step(c.leave, plan)
			if !ok || !st.allows(c.leave, plan) {
				later = append(later, c)
				continue
			}
			out = append(out, s)
			st.take(c.leave, plan)
			again = true
		}
		parts = later
	}
	return append(out, st.pieces(large)...)
}

// pieces makes steps of single candidates as long as each saves money, then of several candidates at a time.
func (st *stepper) pieces(candidates []int) []Step {
	slices.SortStableFunc(candidates, func(a, b int) int {
		x, y := &st.candidates[a], &st.candidates[b]
		return cmp.Or(amount.CompareProducts(int64(y.Price-y.moves), int64(len(x.Pods)+1), int64(x.Price-x.moves), int64(len(y.Pods)+1)), cmp.Compare(a, b))
	})
	var out []Step
	try := func(leave []int) {
		if !st.most(leave) {
			return
		}
		plan := st.small().Plan(st.without(leave))
		if s, ok := st.step(leave, plan); ok {
			out = append(out, s)
			st.take(leave, plan)
		}
	}
	for _, i := range candidates {
		if !st.candidates[i].settled {
			try([]int{i})
		}
	}
	for n := 2; n <= len(candidates); n *= 2 {
		left := slices.DeleteFunc(slices.Clone(candidates), func(i int) bool { return st.candidates[i].settled })
		try(left[:min(n, len(left))])
	}
	return out
}

// most reports whether a step may remove that many machines of each pool.
func (st *stepper) most(leave []int) bool {
	n := make([]int, len(st.now.Pools))
	for _, i := range leave {
		pool := st.candidates[i].Pool
		if n[pool]++; st.layout.Most != nil && (pool >= len(st.layout.Most) || n[pool] > st.layout.Most[pool]) {
			return false
		}
	}
	return len(leave) > 0
}
