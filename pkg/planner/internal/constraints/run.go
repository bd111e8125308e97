package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// maxArrangements limits how often domains, preferences and pools are decided again. Each round makes one plan.
const maxArrangements = 24

// rounds plans for a snapshot whose groups that share a machine are planned already.
func (a *arranger) rounds(s planner.Snapshot) planner.Plan {
	r := &rounds{arranger: a, problem: newProblem(s)}
	r.local = make([]bool, len(s.Classes))
	for c := range s.Classes {
		r.local[c] = slices.ContainsFunc(r.problem.about[c], func(i int) bool { return r.problem.rules[i].Topology != planner.PerNode })
	}
	for c, class := range s.Classes {
		r.stages = append(r.stages, r.problem.stages(c))
		r.waiting = append(r.waiting, make([]int64, len(r.stages[c])))
		r.waiting[c][0] = int64(len(class.Pods))
	}
	best, ok := r.run()
	last := 0
	for c := range r.stages {
		last = max(last, len(r.stages[c])-1)
	}
	// The preference or the pool of other pods may be what keeps the last ones out.
	for from := 1; !ok && from <= last && len(best.Unplaced) > 0 && !r.arranger.stopped(); from++ {
		for c := range r.waiting {
			clear(r.waiting[c])
			r.waiting[c][min(from, len(r.waiting[c])-1)] = int64(len(s.Classes[c].Pods))
		}
		again, _ := r.run()
		if len(again.Unplaced) < len(best.Unplaced) {
			best = again
		}
	}
	return best
}

// canGiveUp reports whether any pods wait at a stage before their last one.
func (r *rounds) canGiveUp() bool {
	for c := range r.waiting {
		for _, n := range r.waiting[c][:len(r.waiting[c])-1] {
			if n > 0 {
				return true
			}
		}
	}
	return false
}

// run returns the best plan of its rounds. It also reports whether the plan is final: it places all pods, or no pods could give up more.
func (r *rounds) run() (planner.Plan, bool) {
	r.cells = map[[2]int][]*cell{}
	var best planner.Plan
	var shares map[*cell]int64
	bestMoved := 0
	for round := range maxArrangements {
		cohorts := r.cohorts()
		if len(cohorts) > 0 {
			r.assign(cohorts)
		}
		parts := r.portions()
		plan := r.arranger.solve(r.lowered(parts, false))
		short := r.missing(parts, plan)
		whole, surplus := r.complete(cohorts, parts, plan)
		r.learn(parts, short, surplus)
		if round == 0 || len(whole.Unplaced) < len(best.Unplaced) ||
			len(whole.Unplaced) == len(best.Unplaced) && r.moved == bestMoved && whole.Price < best.Price {
			best, bestMoved, shares = whole, r.moved, r.shares()
		}
		if len(whole.Unplaced) == 0 || r.arranger.stopped() || !r.giveUp(cohorts, parts, short) {
			break
		}
	}
	if OnlyPrice(r.problem.Snapshot) {
		best = r.improve(best, shares)
	}
	return best, len(best.Unplaced) == 0 || !r.canGiveUp()
}
